"""What the sandbox's Python does not have and what to do about it. Owns the lists and the advice; must not know who
misses it."""

from __future__ import annotations

_HTTP = "a component has no sockets; use `prl_env.http.fetch` instead"
_PACKED = "unpack what it would read before the build, or use `zlib`"
_NATIVE = "a component calls no other machine code; do without it"
_SYSTEM = "a component has no terminal and no operating system around it; do without it"
_GONE = "the sandbox's Python is 3.14, which no longer has it; do without it"

ADVICE = {
    **dict.fromkeys(["ssl", "_ssl"], _HTTP),
    **dict.fromkeys(["bz2", "_bz2", "lzma", "_lzma", "_zstd"], _PACKED),
    **dict.fromkeys(["ctypes", "_ctypes"], _NATIVE),
    **dict.fromkeys(
        "curses _curses _curses_panel fcntl grp mmap msvcrt pty pwd readline resource syslog termios tkinter _tkinter tty "
        "turtle winreg winsound _dbm _gdbm _hashlib _interpreters _multiprocessing _posixshmem _posixsubprocess "
        "_uuid".split(),
        _SYSTEM,
    ),
    **dict.fromkeys(
        "aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib "
        "ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib".split(),
        _GONE,
    ),
}
"""Modules of Python's own that cannot be imported in a component, and what to do instead."""

COMPILED = set(
    "aiohttp bitarray blis cffi cryptography cupy cv2 cymem datasets duckdb gmpy2 greenlet grpc h5py jax "
    "jaxlib jiter kiwisolver levenshtein Levenshtein lightgbm llvmlite lxml matplotlib mlx numba numexpr "
    "numpy onnxruntime orjson pandas PIL polars psutil psycopg2 pyarrow pycosat pydantic pydantic_core rapidfuzz regex "
    "rpds safetensors scipy sentencepiece shapely skimage sklearn spacy tensorflow thinc tiktoken tokenizers torch "
    "torchaudio torchvision transformers ujson vllm xgboost zmq zstandard".split()
)
"""Modules of packages with machine code, or that need some, as far as environments are likely to ask for them."""

MACHINE_CODE = (
    "its package holds or needs machine code, which a component cannot have: do without it, name it in `stand_ins` of "
    "[tool.prl-env] in pyproject.toml if it is imported and never used, or serve the environment outside the sandbox "
    "(`prl env serve-python`)"
)


def advice(name: str) -> str | None:
    """What to do about a module that the sandbox cannot have; `None` for one that it may have."""
    top = name.partition(".")[0]
    if top in ADVICE:
        return f"the sandbox has no module `{top}`: {ADVICE[top]}"
    return f"`{top}` cannot be had in the sandbox: {MACHINE_CODE}" if top in COMPILED else None
