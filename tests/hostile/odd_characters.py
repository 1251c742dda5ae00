"""Texts of very many spaces, digits, brackets and other characters."""

from __future__ import annotations

from tests.hostile.entries import HEAD, MANY, MEGABYTE, Entries, X, main, program_json

CHARACTERS = Entries()


@CHARACTERS.entry("ok")
def very_many_comments() -> str:
    return HEAD + "# nothing here\n" * (5 * MANY) + main([], "%0").removeprefix(HEAD)


@CHARACTERS.entry("ok")
def very_many_spaces() -> str:
    return " \t\r\n" * MEGABYTE + main([], "%0")


@CHARACTERS.entry("ok")
def very_many_spaces_before_json() -> str:
    return " \n" * MEGABYTE + program_json([])


@CHARACTERS.entry("MalformedText")
def very_many_spaces_before_a_wrong_character() -> str:
    return HEAD + " " * MEGABYTE + "$"


@CHARACTERS.entry("MalformedText")
def a_string_that_never_ends() -> str:
    return f'{HEAD}func @"{"s" * MEGABYTE}'


@CHARACTERS.entry("MalformedText")
def a_string_of_escapes_that_never_ends() -> str:
    return HEAD + 'func @"' + '\\"' * MEGABYTE


@CHARACTERS.entry("MalformedText")
def a_number_of_a_million_digits() -> str:
    return main([], "%" + "9" * MEGABYTE)


@CHARACTERS.entry("MalformedText")
def a_number_of_a_million_digits_and_a_letter() -> str:
    return main([], "%" + "9" * MEGABYTE + "x")


@CHARACTERS.entry("MalformedText")
def a_dim_of_a_million_digits() -> str:
    return main([], "%0", X, f"%0: f32[{'9' * MEGABYTE}]")


@CHARACTERS.entry("LiteralInvalid")
def a_literal_of_a_million_digits() -> str:
    return main([f"%1 = add(%0, si32[1]<{'9' * MEGABYTE}>) : {X}"], "%1")


@CHARACTERS.entry("MalformedJson")
def a_json_number_of_a_million_digits() -> str:
    return program_json([], result_ids=["N"]).replace('"N"', "9" * MEGABYTE)


@CHARACTERS.entry("MalformedJson")
def a_json_fraction_of_a_million_digits() -> str:
    return program_json([], result_ids=["N"]).replace('"N"', "0." + "9" * MEGABYTE)


@CHARACTERS.entry("MalformedText")
def very_many_dots_in_a_name() -> str:
    return HEAD + "func @a" + "." * MEGABYTE


@CHARACTERS.entry("MalformedText")
def very_many_signs() -> str:
    return HEAD + "-" * MEGABYTE


@CHARACTERS.entry("MalformedText")
def very_many_opening_brackets() -> str:
    return HEAD + "func @main" + "(" * MEGABYTE


@CHARACTERS.entry("MalformedText")
def a_megabyte_of_nul() -> bytes:
    return HEAD.encode() + b"\0" * MEGABYTE


@CHARACTERS.entry("MalformedBincode")
def nothing_but_nul() -> bytes:
    return b"\0" * MEGABYTE


@CHARACTERS.entry("MalformedText")
def nothing_but_ff() -> bytes:
    return b"\xff" * MEGABYTE
