"""A nested container as JSON: what `weft.save` writes into the metadata of a file.

Tensors are named; numbers, texts and None stand in the JSON itself. A text is all there is: no
class is looked up and nothing is evaluated, so that a file of a stranger can do no more than be
wrong. Modules and other objects are told by the names of their parts.

    {"dict": ["at", "of"], "of": [{"value": 3}, {"object": "MLP", "names": ["w"], "of": [...]}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from weft.foundation.errors import UserError, a_type
from weft.ops.pytree import children
from weft.ops.tensor import Tensor

Form = dict[str, Any]
RESERVED = "__metadata__"
"""The name that no tensor of a safetensors file can have."""
_DEEPEST = 200


def form_of(tree: Any, held: dict[str, Tensor]) -> Form:
    """The form of a container; its tensors are put into `held` under the names that it has for
    them."""
    return _form(tree, "", held, 0)


def _form(tree: Any, path: str, held: dict[str, Tensor], depth: int) -> Form:
    if depth > _DEEPEST:
        raise UserError(f"a container is nested more than {_DEEPEST} deep, or contains itself")
    if tree is None:
        return {"value": None}
    parts = children(tree)
    if parts is None:
        return _leaf(tree, path, held)
    steps = [_name_step(name) for name, _ in parts]
    of = [
        _form(part, f"{path}.{step}" if path else step, held, depth + 1)
        for step, (_, part) in zip(steps, parts, strict=True)
    ]
    kind = type(tree)
    if kind in (list, tuple):
        return {kind.__name__: len(of), "of": of}
    if isinstance(tree, dict):
        keys, order = _keys(tree, len(parts), path), list(tree)
        return {"dict": keys, "of": of} | ({"order": order} if order != keys else {})
    return {"object": kind.__name__, "names": steps, "of": of}


def _keys(tree: dict[Any, Any], count: int, path: str) -> list[Any]:
    """The keys of a dict in the order of its parts."""
    try:
        keys = sorted(tree) if type(tree).__name__ != "OrderedDict" else list(tree)
    except TypeError:
        keys = list(tree)
    for key in keys:
        if type(key) not in (str, int):
            raise UserError(
                f"[save] {path or 'the tree'} has the key {key!r}; texts and whole numbers can be "
                "saved as keys"
            )
    assert len(keys) == count
    return keys


def _leaf(value: Any, path: str, held: dict[str, Tensor]) -> Form:
    if isinstance(value, Tensor):
        name, number = path or "value", 1
        while name in held or name == RESERVED:
            name, number = f"{path}.{number}", number + 1
        held[name] = value
        return {"tensor": name}
    if type(value) in (bool, int, str):
        return {"value": value}
    if type(value) is float:
        return {"float": value.hex()}
    raise UserError(
        f"[save] {path or 'the tree'} is {a_type(value)}; tensors, arrays, numbers, texts and None "
        "can be saved, in containers"
    )


def _name_step(name: str) -> str:
    """`.weight`, `['a']` and `[0]` as parts of a dotted name."""
    return name.strip(".[]").strip("'\"")


# -- back ------------------------------------------------------------------------------------------


def parsed(text: str, source: str) -> Form:
    """The form that a file has in its metadata."""
    try:
        form = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(
            f"[load] the structure in {source} is not JSON; the file is damaged"
        ) from None
    _check_form(form, source, 0)
    found: Form = form
    return found


def _check_form(form: Any, source: str, depth: int) -> None:
    """Say so where a form is not one that `form_of` writes."""
    wrong = UserError(f"[load] the structure in {source} is not one that weft.save writes")
    if not isinstance(form, dict) or depth > _DEEPEST:
        raise wrong
    if "of" not in form:
        good = isinstance(form.get("tensor"), str) or isinstance(form.get("float"), str)
        good = good or (
            "value" in form and isinstance(form["value"], bool | int | str | type(None))
        )
        if not good:
            raise wrong
        return
    of = form["of"]
    names = form.get("dict", form.get("names"))
    if not isinstance(of, list) or ("object" in form and not isinstance(form["object"], str)):
        raise wrong
    if names is None:
        count = form.get("list", form.get("tuple"))
        if type(count) is not int or count != len(of):
            raise wrong
    else:
        order: Any = form.get("order", names)
        if not all(_is_list_of_keys(keys) and len(keys) == len(of) for keys in (names, order)):
            raise wrong
        if set(order) != set(names):
            raise wrong
    for child in of:
        _check_form(child, source, depth + 1)


def _is_list_of_keys(keys: Any) -> bool:
    """Whether these are keys of a dict, each once."""
    good = isinstance(keys, list) and all(type(key) in (str, int) for key in keys)
    return good and len(set(keys)) == len(keys)


def tree_of(form: Form, held: dict[str, Tensor], source: str) -> Any:
    """The container that a form describes; objects are dicts of the tensors and values in them, by
    dotted name."""
    if "of" not in form:
        return leaf_of(form, held, source)
    if "object" in form:
        return dict(_list_leaves(form, held, source, ""))
    parts = [tree_of(child, held, source) for child in form["of"]]
    if "dict" in form:
        found = dict(zip(form["dict"], parts, strict=True))
        order: Any = form.get("order", form["dict"])
        return {key: found[key] for key in order}
    return tuple(parts) if "tuple" in form else parts


def _list_leaves(form: Form, held: dict[str, Tensor], source: str, path: str) -> Iterator[Any]:
    if "of" not in form:
        yield path, leaf_of(form, held, source)
        return
    names = form.get("dict") or form.get("names") or range(len(form["of"]))
    for name, child in zip(names, form["of"], strict=True):
        yield from _list_leaves(child, held, source, f"{path}.{name}" if path else str(name))


def leaf_of(form: Form, held: dict[str, Tensor], source: str) -> Any:
    """A tensor or value of a form."""
    if "tensor" in form:
        if form["tensor"] not in held:
            raise UserError(f"[load] {source} has no tensor {form['tensor']}, which it names")
        return held[form["tensor"]]
    if "float" in form:
        try:
            return float.fromhex(form["float"])
        except (ValueError, OverflowError):
            raise UserError(f"[load] {form['float']!r} in {source} is not a number") from None
    return form["value"]


def leaves_like(
    form: Form, like: Form, held: dict[str, Tensor], own: dict[str, Tensor], source: str
) -> list[Any]:
    """The leaves of a form, in order, where it is nested as `like` is, the form of what is wanted;
    None has none."""
    found: list[Any] = []
    _fill(form, like, (held, own), source, "", found)
    return found


def _fill(
    form: Form, like: Form, tensors: tuple[Any, Any], source: str, path: str, found: list[Any]
) -> None:
    where = path or "the whole"
    if _form_head(form) != _form_head(like):
        raise UserError(
            f"[load] {where} is {_tell(form)} in {source}, and {_tell(like)} in what is wanted"
        )
    if "of" in form:
        names = form.get("dict") or form.get("names") or range(len(form["of"]))
        for name, child, other in zip(names, form["of"], like["of"], strict=True):
            _fill(child, other, tensors, source, f"{path}.{name}" if path else str(name), found)
        return
    value = leaf_of(form, tensors[0], source)
    if isinstance(value, Tensor):
        wanted = tensors[1][like["tensor"]]
        if value.type != wanted.type:
            raise UserError(f"[load] {where} is {value.type} in {source}, not {wanted.type}")
    if value is not None:
        found.append(value)


def _form_head(form: Form) -> Any:
    """What two forms have in common where one can be read as the other."""
    if "of" not in form:
        return "tensor" if "tensor" in form else "none" if form.get("value", 0) is None else "value"
    return {key: value for key, value in form.items() if key not in ("of", "order")}


def _tell(form: Form) -> str:
    if "of" not in form:
        return {"tensor": "a tensor", "none": "None", "value": "a number or text"}[_form_head(form)]
    if "object" in form:
        return f"{form['object']} with {_list_names(form['names'])}"
    if "dict" in form:
        return f"a dict with {_list_names(form['dict'])}"
    return f"a {'list' if 'list' in form else 'tuple'} of {len(form['of'])}"


def _list_names(names: Sequence[Any]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (", ".join(map(str, names[:6])) or "nothing") + more
