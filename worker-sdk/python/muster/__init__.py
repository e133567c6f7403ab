"""What a worker of a distributed job asks and tells, from Python: who am I, the job's store, progress, sections, whether to stop,
and why it failed. On libmuster by ctypes: nothing to compile, nothing beside the standard library. Made to stand beside
torch.distributed in a training script, and works without it.

    import muster

    muster.stop_on_sigterm()
    for step, batch in enumerate(loader):
        with muster.section("step", limit=60):
            train(batch)
        muster.progress(step)
        if muster.should_stop(any_rank):       # any_rank: see should_stop()
            save(); break

All but store() work in any process, under any launcher or none; without an agent they do nothing. Functions may be called from
any thread; a Store serves one thread at a time. Errors are muster.Error, an OSError with a sentence; arguments that cannot be are
TypeError, ValueError or OverflowError, and nothing was done.

The library is found as $MUSTER_LIBRARY, in the module's own folder (a wheel), beside the installed module, or by the system's loader as
libmuster.so.0.
"""
import atexit
import contextlib
import ctypes
import errno
import numbers
import os
import signal
import sys
import threading
import time
from collections import namedtuple

__all__ = ["Env", "Error", "Store", "env", "fail", "log", "progress", "request_stop", "section", "should_stop", "stop_on_sigterm",
           "store"]

_TEXT_BYTES = 256
_NS = 1_000_000_000


class Error(OSError):
    """A sentence of libmuster; `errno` is positive, as in every OSError."""


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * _TEXT_BYTES)]


class _Env(ctypes.Structure):
    _fields_ = [("launcher", ctypes.c_int)] + [
        (name, ctypes.c_uint32)
        for name in ("rank", "world", "local_rank", "local_world", "node_rank", "node_count", "restart_count", "restarts_max", "round")
    ] + [("run_id", ctypes.c_char * 128), ("store_host", ctypes.c_char * 256), ("store_port", ctypes.c_uint16),
         ("store_is_served", ctypes.c_bool)]


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("timeout_ns", ctypes.c_int64)]


class _Bytes(ctypes.Structure):
    _fields_ = [("p", ctypes.c_void_p), ("n", ctypes.c_size_t)]


Env = namedtuple("Env", "launcher rank world local_rank local_world node_rank node_count restart_count restarts_max round run_id "
                        "store_host store_port store_is_served")
_LAUNCHERS = ("none", "agent", "torchrun", "mpi", "slurm")


def _find():
    given = os.environ.get("MUSTER_LIBRARY")
    if given:
        return given
    here = os.path.dirname(os.path.abspath(__file__))
    for way in ((), ("..", "..", "..")):  # In a wheel; and as <libdir>/muster/python/muster/__init__.py.
        path = os.path.join(here, *way, "libmuster.so.0")
        if os.path.exists(path):
            return path
    return "libmuster.so.0"


def _load():
    try:
        lib = ctypes.CDLL(_find())
    except OSError as e:
        raise ImportError(f"libmuster.so.0 cannot be loaded ({e}): install muster's SDK, or name the file in MUSTER_LIBRARY") from None
    p, err, i64, u32, text, size = (ctypes.c_void_p, ctypes.POINTER(_Error), ctypes.c_int64, ctypes.c_uint32, ctypes.c_char_p,
                                    ctypes.c_size_t)
    texts, many, out = ctypes.POINTER(text), ctypes.POINTER(_Bytes), ctypes.POINTER(_Bytes)
    of_int = {
        "muster_env_read": [ctypes.POINTER(_Env), err],
        "muster_open": [ctypes.POINTER(_Options), ctypes.POINTER(p), err],
        "muster_fail": [p, text, err],
        "muster_store_set": [p, text, text, size, err],
        "muster_store_get": [p, text, out, err],
        "muster_store_add": [p, text, i64, ctypes.POINTER(i64), err],
        "muster_store_append": [p, text, text, size, err],
        "muster_store_compare_set": [p, text, text, size, text, size, out, err],
        "muster_store_check": [p, texts, size, ctypes.POINTER(ctypes.c_bool), err],
        "muster_store_wait": [p, texts, size, i64, err],
        "muster_store_delete": [p, text, ctypes.POINTER(ctypes.c_bool), err],
        "muster_store_num_keys": [p, ctypes.POINTER(i64), err],
        "muster_store_barrier": [p, text, u32, u32, i64, err],
    }
    of_none = {
        "muster_close": [p],
        "muster_progress": [p, ctypes.c_uint64],
        "muster_progress_flush": [p],
        "muster_section_begin": [p, text, i64],
        "muster_section_end": [p],
        "muster_request_stop": [p],
        "muster_bytes_free": [many],
        "muster_store_set_timeout": [p, i64],
    }
    for table, result in ((of_int, ctypes.c_int), (of_none, None)):
        for name, arguments in table.items():
            getattr(lib, name).argtypes = arguments
            getattr(lib, name).restype = result
    lib.muster_get_store.argtypes, lib.muster_get_store.restype = [p], p
    lib.muster_stop_requested.argtypes, lib.muster_stop_requested.restype = [p], ctypes.c_bool
    return lib


_lib = _load()
atexit.register(_lib.muster_progress_flush, None)


def _check(function, *arguments):
    err = _Error()
    r = function(*arguments, ctypes.byref(err))
    if r < 0:
        raise Error(-r, err.text.decode("utf-8", "replace") or os.strerror(-r))
    return r


def _ns(seconds, what="timeout"):
    """None, infinity, and what a clock of nanoseconds cannot hold: no limit."""
    if seconds is None:
        return -1
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"{what} is a number of seconds or None, not {type(seconds).__name__}")
    if not seconds >= 0:  # NaN is not, either.
        raise ValueError(f"{what} is 0 or more seconds, not {seconds}")
    return -1 if seconds * _NS >= 2**63 else int(seconds * _NS)


def _integer(value, what, low, high):
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an int, not {type(value).__name__}")
    value = value.__index__()
    if not low <= value <= high:
        raise OverflowError(f"{what} is {low} to {high}, not {value}")
    return value


def _text(value, what):
    """A C string: a NUL in it would cut it."""
    if not isinstance(value, str):
        raise TypeError(f"a {what} is a str, not {type(value).__name__}")
    raw = value.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise ValueError(f"a {what} holds no NUL: {value!r}")
    return raw


def _value(value):
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a value is str or bytes, not {type(value).__name__}")


def _span(seconds):
    if seconds >= 0.1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"


# --- who am I ---

def env():
    """Who am I: rank, world, local_rank, local_world, node_rank, node_count, restart_count, restarts_max, round, run_id, ... Read
    from the environment at each call; Error names the variable that is wrong. launcher is "none", "agent", "torchrun", "mpi" or
    "slurm"."""
    e = _Env()
    _check(_lib.muster_env_read, ctypes.byref(e))
    values = [getattr(e, name) for name, _ in _Env._fields_]
    values[0] = _LAUNCHERS[e.launcher] if e.launcher < len(_LAUNCHERS) else str(e.launcher)
    return Env(*[v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in values])


# --- the store ---

class Store:
    """Keys and values that all ranks of this round see. From store(). Keys are str, values str or bytes. Every call has a limit:
    get(), wait() and barrier() their `timeout` in seconds; without one, and in all others, it is the store's own, that of store()
    or set_timeout().

        s = muster.store()
        s.set("answer", "42")
        s.get("answer", timeout=30)          # b"42"
        s.wait(["a", "b"], timeout=30)       # or s.wait("a", "b", timeout=30)
    """

    def __init__(self, handle, who, timeout):
        self._handle = handle
        self._p = _lib.muster_get_store(handle)
        self._who = who
        self._timeout = timeout
        if not self._p:
            raise Error(errno.ENOTCONN, "a world of one has no store, unless its launcher serves one, as node-agent does")

    def set_timeout(self, seconds):
        """How long an operation may take that is not told otherwise; None: for ever."""
        _lib.muster_store_set_timeout(self._p, _ns(seconds))
        self._timeout = seconds

    def set(self, key, value):
        value = _value(value)
        _check(_lib.muster_store_set, self._p, _text(key, "key"), value, len(value))

    def get(self, key, timeout=None):
        """Waits for the key; gives bytes."""
        got = _Bytes()
        with self._within(timeout):
            _check(_lib.muster_store_get, self._p, _text(key, "key"), ctypes.byref(got))
        return self._take(got)

    def add(self, key, amount=1):
        """Adds to a number, 0 where there is none; gives the sum."""
        total = ctypes.c_int64()
        amount = _integer(amount, "amount", -2**63, 2**63 - 1)
        _check(_lib.muster_store_add, self._p, _text(key, "key"), amount, ctypes.byref(total))
        return total.value

    def append(self, key, value):
        value = _value(value)
        _check(_lib.muster_store_append, self._p, _text(key, "key"), value, len(value))

    def compare_set(self, key, expected, desired):
        """Sets `desired` where the key holds `expected`, or is missing and `expected` is empty; gives what it holds then."""
        expected, desired = _value(expected), _value(desired)
        got = _Bytes()
        _check(_lib.muster_store_compare_set, self._p, _text(key, "key"), expected, len(expected), desired, len(desired),
               ctypes.byref(got))
        return self._take(got)

    def check(self, *keys):
        """Are all of them there now? check("a", "b") or check(["a", "b"])."""
        there = ctypes.c_bool()
        names = self._keys(keys)
        _check(_lib.muster_store_check, self._p, names, len(names), ctypes.byref(there))
        return there.value

    def wait(self, *keys, timeout=None):
        """Until all of them are there; an Error names one that is missing. wait("a", "b") or wait(["a", "b"])."""
        names = self._keys(keys)
        _check(_lib.muster_store_wait, self._p, names, len(names), _ns(timeout))

    def delete(self, key):
        """Was it there?"""
        there = ctypes.c_bool()
        _check(_lib.muster_store_delete, self._p, _text(key, "key"), ctypes.byref(there))
        return there.value

    def num_keys(self):
        """Of the whole store, other programs' keys included."""
        count = ctypes.c_int64()
        _check(_lib.muster_store_num_keys, self._p, ctypes.byref(count))
        return count.value

    def barrier(self, name, timeout=None):
        """Until every rank has come here with this name; an Error names who is missing. A name is good for one barrier."""
        _check(_lib.muster_store_barrier, self._p, _text(name, "name"), self._who.rank, self._who.world, _ns(timeout))

    @contextlib.contextmanager
    def _within(self, timeout):
        """For a function of the library that knows the store's own limit only."""
        if timeout is None:
            yield
            return
        _lib.muster_store_set_timeout(self._p, _ns(timeout))
        try:
            yield
        finally:
            _lib.muster_store_set_timeout(self._p, _ns(self._timeout))

    @staticmethod
    def _keys(keys):
        """One by one, or as one list."""
        if len(keys) == 1 and not isinstance(keys[0], (str, bytes)) and hasattr(keys[0], "__iter__"):
            keys = tuple(keys[0])
        return (ctypes.c_char_p * len(keys))(*[_text(k, "key") for k in keys])

    @staticmethod
    def _take(got):
        try:
            return ctypes.string_at(got.p, got.n) if got.n else b""
        finally:
            _lib.muster_bytes_free(ctypes.byref(got))


_opened = threading.Lock()
_stores = []


def store(timeout=300.0):
    """The job's store; the same one at each call. Where no launcher serves one (mpiexec, srun, plain RANK and MASTER_ADDR), rank 0
    of this library serves it at MASTER_PORT: then torch.distributed needs a port of its own."""
    with _opened:
        if not _stores:
            handle = ctypes.c_void_p()
            options = _Options(ctypes.sizeof(_Options), _ns(timeout))
            _check(_lib.muster_open, ctypes.byref(options), ctypes.byref(handle))
            try:
                _stores.append(Store(handle, env(), timeout))
            except BaseException:
                _lib.muster_close(handle)
                raise
            atexit.register(_lib.muster_close, handle)
        return _stores[0]


# --- progress and errors ---

def progress(step):
    """This rank has finished `step`. Costs a microsecond; tells the agent at most ten times a second."""
    _lib.muster_progress(None, _integer(step, "step", 0, 2**64 - 1))


@contextlib.contextmanager
def section(name, limit=None):
    """with section("load data", limit=30): a part that should not last longer than `limit` seconds. Its name is in the text of
    fail(), also where the exception that left it is handled outside."""
    began = time.monotonic()
    _lib.muster_section_begin(None, _text(name, "name"), _ns(limit, "limit"))
    try:
        yield
    except BaseException as e:
        if not hasattr(e, "_muster_section"):  # The innermost one.
            within = f"in section '{name}' for {_span(time.monotonic() - began)}"
            with contextlib.suppress(AttributeError):
                e._muster_section = within if limit is None else f"{within}, limit {_span(limit)}"
        raise
    finally:
        _lib.muster_section_end(None)


def request_stop():
    """Ask this process to stop, as its agent would."""
    _lib.muster_request_stop(None)


def stop_on_sigterm():
    """Let SIGTERM ask to stop instead of ending the process; call it from the main thread. The agent sends SIGKILL when its
    --shutdown-timeout is over."""
    signal.signal(signal.SIGTERM, lambda *_: request_stop())


def should_stop(reduce=None):
    """Was this process asked to stop, by request_stop(), SIGTERM or its agent? Without `reduce` that is this rank's answer alone,
    and ranks may get it at different steps. Where a node is to leave in order the agents name one step, and every rank's answer
    is yes from its progress() of that step on: checkpoint, and exit with 0. `reduce` makes it the group's: a callable that gets 0 or 1 and gives the greatest of
    all ranks', called by every rank at the same step; it may use whatever the ranks have in common:

        def any_rank(flag):
            t = torch.tensor([flag])
            torch.distributed.all_reduce(t, op=torch.distributed.ReduceOp.MAX)
            return t.item()
    """
    asked = bool(_lib.muster_stop_requested(None))
    return asked if reduce is None else bool(reduce(int(asked)))


def fail(message):
    """Write why this worker fails to TORCHELASTIC_ERROR_FILE, in torch's schema, and tell the agent; then raise or exit as you
    like. The first failure counts."""
    text = str(message).replace("\0", " ")
    left = getattr(sys.exc_info()[1], "_muster_section", None)
    if left is not None:
        text = f"{text} ({left})"
    _check(_lib.muster_fail, None, text.encode("utf-8", "replace"))


def log(message, all_ranks=False):
    """One line to stderr: of rank 0 alone, or of each rank with "[rank 3] " in front."""
    rank = env().rank
    if all_ranks or rank == 0:
        prefix = f"[rank {rank}] " if all_ranks else ""
        sys.stderr.flush()
        os.write(sys.stderr.fileno(), f"{prefix}{message}\n".encode("utf-8", "replace"))
