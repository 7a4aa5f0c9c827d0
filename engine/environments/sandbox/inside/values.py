"""Encodes plain Python values as JSON and back, to pass them from one sandbox into another.

    17 -> 17      (1, "a") -> {"tuple": [1, "a"]}      {1: 2} -> {"dict": [[1, 2]]}      nan -> {"float": "nan"}

Invariant: decoded values consist of built-in types themselves, so an object that claims to equal everything is never
passed on.
"""

import math

_SERIES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class CannotCross(TypeError):
    """A value of this type cannot leave its sandbox."""


def encoded(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    # Not str(value), which a subclass may override.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return {"int": int.__repr__(value)}
    if isinstance(value, float):
        plain = float.__pos__(value)
        return plain if math.isfinite(plain) else {"float": repr(plain)}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(item)] for key, item in value.items()]}
    for name, kind in _SERIES.items():
        if isinstance(value, kind):
            return {name: [encoded(item) for item in value]}  # type: ignore[attr-defined]
    raise CannotCross(f"a value of the type {type(value).__name__} cannot leave its sandbox")


def decoded(sent: object) -> object:
    if isinstance(sent, list):
        return [decoded(item) for item in sent]
    if not isinstance(sent, dict):
        return sent
    ((name, content),) = sent.items()
    if name == "int":
        return int(content)
    if name == "float":
        return float(content)
    if name == "complex":
        return complex(float(content[0]), float(content[1]))
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "dict":
        return {decoded(key): decoded(item) for key, item in content}
    return _SERIES[name](decoded(item) for item in content)
