"""Type rules, one file per family of instructions; `weft.core_ir.infer` has the table."""
