"""IndexBook: the axis space of every Tiny value (document 2, section 1.3)."""
