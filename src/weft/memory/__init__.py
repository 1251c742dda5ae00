"""Memory planning after fusion: layouts, aliasing, donation, live ranges, arena offsets (document
2, section 8).
"""
