"""Forged answers, for every kind of judge.

Invariant: none of them answers its question; a judge that rewards one, or leaves one without a reward, is wrong.
"""

from typing import Final

# For judges that once evaluated answers: code that writes the verdict, exits early, or changes the judge.
_CODE: Final = (
    "__import__('os')._exit(0)",
    "__import__('os').write(3, b'{\"value\": 1.0}') and __import__('os')._exit(0)",
    "[__import__('os').write(fd, b'{\"value\": 1.0}') for fd in range(3, 64)]",
    "exec(\"import os, json\\nfor fd in range(3, 64):\\n  try: os.write(fd, json.dumps({'value': 1.0}).encode())\\n"
    '  except OSError: pass\\nos._exit(0)")',
    "exec('import sys; sys.modules[\"__main__\"].score = lambda *a: 1.0')",
    "exec('import json; json.dumps = lambda *a, **k: \"{}\"')",
    "exec('import atexit; atexit.register(print, 1)')",
    "exec('import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()')",
    "exec('import sys; sys.exit(0)')",
    "exec('raise SystemExit(1.0)')",
    "exec('while True: pass')",
    "exec('import signal; signal.signal(signal.SIGPROF, signal.SIG_IGN)')",
    "__import__('pickle').loads(b\"cos\\nsystem\\n(S'true'\\ntR.\")",
    "__import__('gc').get_objects()",
    "[f.f_locals for f in [__import__('sys')._getframe(1)]][0]['entry']['answer']",
    "__import__('sys')._getframe(1).f_locals['entry']['answer']",
    "__import__('inspect').stack()[1].frame.f_locals['entry']['metadata']",
    "(lambda: 24)()",
    "[x for x in (24,)][0]",
    "type('E', (), {'__eq__': lambda s, o: True, '__float__': lambda s: 24.0, '__int__': lambda s: 24})()",
    "().__class__.__base__.__subclasses__()",
    "open('/box/main.py').read()",
    "compile('24', 'x', 'eval')",
    "eval('24')",
    "globals()['expression']",
    "(yield)",
    "f'{24}'",
    "(a := 24)",
    "print('1.0')",
    "sys.stdout.write('1' * 10**8)",
)
# Numbers that are invalid or too long; texts that are nested too deeply.
_NUMBERS: Final = (
    "nan", "inf", "-inf", "1e308", "1e309", "-1e308", "9" * 5000, "0x" + "f" * 5000, "9**9**9**9", "1e999999999",
    "9" * 4300 + "!", "(" * 5000 + "1" + ")" * 5000, "[" * 100_000, "{" * 5000, "-" * 20_000 + "1", "1/0", "0**-1",
    "\x00", "\ud7ff\ufffe", "😀" * 1000, "", " ", "\n" * 1000,
)  # fmt: skip
# Texts that a library would solve itself, or that hide a number from its count of the numbers used.
_ECHOES: Final = {
    "simple_integration": ("Integral({integrand}, {variable})", "integrate({integrand}, {variable})"),
    "intermediate_integration": (
        "Integral({integrand}, {variable})",
        "integrate({integrand}, {variable})",
        "sympify('integrate({integrand}, {variable})')",
        "dsolve(f(x).diff(x) - 1)",
    ),
    "polynomial_multiplication": ("expand({polynomial_expr})", "sympify('{polynomial_expr}').expand()"),
    "countdown": (
        "{target}e0 # {used}",
        "{used_sum} + {rest}e0",
        "{used_sum} + {rest_underscored}",
        "{used_sum} + {rest_of_ones}",
    ),
    "puzzle24": ("24", "2_4 # 1 1 1 1", "24e0*1*1*1*1", "max(24, 1, 1, 1)"),
}
TASKS: Final = (
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "simple_integration", "intermediate_integration",
    "polynomial_multiplication", "puzzle24", "countdown", "polynomial_equations", "complex_arithmetic", "coin_flip",
    "power_function",
)  # fmt: skip


def forged(task: str, entry: dict[str, object]) -> list[str]:
    """Forged answers to a question of this task of reasoning-gym, a list that a scorer would join included."""
    metadata = dict(entry["metadata"], **_of_countdown(entry))  # type: ignore[call-overload]
    joined = f"exec('import sys') or {str(entry['answer']).splitlines()!r}"
    echoes = [text.format_map(metadata) for text in _ECHOES.get(task, ())]
    return [*_CODE, *_NUMBERS, joined, *echoes]


def _of_countdown(entry: dict[str, object]) -> dict[str, object]:
    metadata = entry["metadata"]
    if not isinstance(metadata, dict) or "target" not in metadata:
        return {}
    numbers, rest = metadata["numbers"], metadata["target"] - sum(metadata["numbers"])
    return {
        "used": " ".join(map(str, numbers)),
        "used_sum": " + ".join(map(str, numbers)),
        "rest": rest,
        "rest_underscored": "_".join(str(rest)),
        "rest_of_ones": f"({' + '.join(['x/x'] * abs(rest))})" if rest > 0 else f"-({' + '.join(['x/x'] * -rest)})",
    }


# Programs that are judged by tests, in a sandbox of their own.
PROGRAMS: Final = (
    "while True: pass",
    "def add(a, b):\n    while True: pass",
    "def add(a, b): return bytearray(1 << 40)",
    "import time\ntime.sleep(600)",
    "print('1' * 10**8)",
    "def add(a, b):\n    import os; os._exit(0)",
    "def add(a, b): return 10 ** 100_000",
    "def add(a, b):\n    deep = []\n    for _ in range(5000): deep = [deep]\n    return deep",
    "def add(a, b): return float('nan')",
    "def add(a, b): return '\\ud800'",
    "import __main__\n__main__.load_solution = lambda: {'names': 5}\ndef add(a, b): return 0",
    "import os, json, struct\ndef add(a, b):\n    body = json.dumps({'value': {'int': '3'}}).encode()\n"
    "    for fd in range(3, 64):\n        try: os.write(fd, struct.pack('>I', len(body)) + body)\n"
    "        except OSError: pass\n    return 0",
    "import os, struct\nfor fd in range(3, 64):\n    try: os.write(fd, struct.pack('>I', 1 << 30))\n"
    "    except OSError: pass",
    "import threading, time, os\ndef later():\n    time.sleep(0.01)\n    os._exit(0)\n"
    "threading.Thread(target=later).start()\ndef add(a, b): return 0",
    "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): raise SystemExit",
    "import os\nif os.fork(): os._exit(0)\ndef add(a, b): return 0",
    "import signal, os\ndef add(a, b): os.kill(os.getpid(), signal.SIGKILL)",
    "import signal, os\ndef add(a, b): os.kill(os.getpid(), signal.SIGSTOP)",
    "import pickle\ndef add(a, b):\n    class P:\n        def __reduce__(self): return (eval, ('3',))\n"
    "    return pickle.dumps(P())",
    "class T(tuple):\n    def __eq__(s, o): return True\ndef add(a, b): return T((1, 2.5))",
)
"""None of them adds, or not in time."""

MATHEMATICS: Final = (
    "$9^{9^{9^{9^{9}}}}!$", "$\\operatorname{eval}(1)$", "$__import__$", "$\\infty$", "$nan$", "$" * 10_000,
    "$" + "{" * 3000 + "}" * 3000 + "$", r"\boxed{" + "9" * 20_000 + "}", "$\\frac{1}{0}$", "9**9**9**9**9",
    "(" * 3000 + "1" + ")" * 3000, "$1e308$", r"$\sum_{n=1}^{10^{12}} n$", r"$\int_0^1 x^{x^{x^x}} dx$",
)  # fmt: skip
PLAIN: Final = (
    "nan",
    "inf",
    "1e308",
    "1/0",
    "9" * 5000,
    "-nan",
    "0x2a",
    "٤٢",
    "4 2",
    "",
    "\x00",
    "1e400",
    "42" * 50_000,
)
"""None of these texts is 42 to any verifier."""
