"""Threads that wait in compiled code: a compiled function shares itself out among them, without Python in between.

A function of any arguments, the first of which is an ``int64`` called `number`, calls `fork`: from then on the other
threads of the team run the same call, with numbers from 1 on, until `join`. Threads that do not come in time are not
waited for: another process may have the core, or a fork may have left them behind in the parent process. So the work
is to be taken piece by piece by those that are there.

The threads share a `team`, an array of words: those that are written by different threads lie in different cache lines.
They wait for work spinning, for a short time, then in the kernel (a futex).

Subnormal numbers count as zero in such calls, as they do in single precision on GPUs: x86 cores take up to a hundred
times as long for them, and what an update makes smaller and smaller, as those of CP-APR do, ends there.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from partitioner.host.jit import jit

from .vectors import address_of, operation

inlined = numba.njit(inline="always")

WORDS = 8  # of a cache line
STATE, FUNCTION, ARGUMENTS, SIZE, SPINS = range(5)
"""Words of the first line: how a call stands (see `ENTERED`), the call, its number of threads, and how long to spin."""
LEFT, WAITING = WORDS, WORDS + 1
"""Threads that are done with the call; whether its caller sleeps until they are."""
BUSY, FAULTS, ENDED = 2 * WORDS, 2 * WORDS + 1, 2 * WORDS + 2
"""Whether there is a call; how many threads failed; whether the threads are to end."""
ASLEEP = 3 * WORDS  # whether a thread sleeps: thread k's word is so many lines and k lines from the start
ENTERED, OPEN, CALL = (1 << 16) - 1, 1 << 16, 1 << 17
"""Of `STATE`: the threads that entered the call, whether more may, and the lowest bit of the number of calls."""

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0  # of system calls
WAIT, WAKE = 128, 129  # operations of it, within a process
NAP = 50  # microseconds, on a system without it
X86 = platform.machine() in ("x86_64", "AMD64")
FLUSH = 1 << 15 | 1 << 6  # of its control register: results, and operands, that are subnormal are zero

_int64 = ir.IntType(64)


def _word(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.gep(address_of(context, builder, signature.args[0], args[0]), [args[1]])


@operation
def load(typing: Any, team: Any, at: Any) -> Any:
    """Return a word, as all threads see it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, args), "seq_cst", 8)

    return types.int64(team, types.intp), generate


@operation
def store(typing: Any, team: Any, at: Any, value: Any) -> Any:
    """Set a word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word(context, builder, signature, args), "seq_cst", 8)
        return context.get_dummy_value()

    return types.none(team, types.intp, types.int64), generate


def _changed(how: str) -> Any:
    def change(typing: Any, team: Any, at: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.atomic_rmw(how, _word(context, builder, signature, args), args[2], "seq_cst")

        return types.int64(team, types.intp, types.int64), generate

    return operation(change)


add, swap, both = _changed("add"), _changed("xchg"), _changed("and")
"""Change a word by a sum, another value, or the bits in common; return the old one."""


@operation
def replace(typing: Any, team: Any, at: Any, old: Any, new: Any) -> Any:
    """Change a word if it has the `old` value; tell whether it had."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = _word(context, builder, signature, args)
        return builder.extract_value(builder.cmpxchg(word, args[2], args[3], "seq_cst", "seq_cst"), 1)

    return types.boolean(team, types.intp, types.int64, types.int64), generate


@operation
def _pause(typing: Any) -> Any:
    """Let the other half of a core work for some tens of cycles."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if X86:
            builder.call(_library(builder, "llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), [])), [])
        return context.get_dummy_value()

    return types.none(), generate


def _control(builder: Any, what: str, word: Any) -> None:
    """Store (`st`) or load (`ld`) this thread's control register."""
    byte = ir.IntType(8).as_pointer()
    code = _library(builder, f"llvm.x86.sse.{what}mxcsr", ir.FunctionType(ir.VoidType(), [byte]))
    builder.call(code, [builder.bitcast(word, byte)])


@operation
def _flush(typing: Any) -> Any:
    """Let this thread take subnormal numbers for zero; return its control register as it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = cgutils.alloca_once_value(builder, ir.IntType(32)(0))
        if X86:
            _control(builder, "st", word)
            flushing = cgutils.alloca_once_value(builder, builder.or_(builder.load(word), ir.IntType(32)(FLUSH)))
            _control(builder, "ld", flushing)
        return builder.load(word)

    return types.int32(), generate


@operation
def _restore(typing: Any, control: Any) -> Any:
    """Give this thread its control register back."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if X86:
            _control(builder, "ld", cgutils.alloca_once_value(builder, args[0]))
        return context.get_dummy_value()

    return types.none(types.int32), generate


def _library(builder: Any, name: str, kind: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, kind, name)


def _futex(builder: Any, word: Any, what: int, value: int) -> None:
    """Make the system call; without one, take a nap (nobody needs to be woken then)."""
    if FUTEX:
        call = _library(builder, "syscall", ir.FunctionType(_int64, [_int64], var_arg=True))
        numbers = [_int64(what), _int64(value), _int64(0), _int64(0), _int64(0)]
        builder.call(call, [_int64(FUTEX), builder.ptrtoint(word, _int64), *numbers])
    elif what == WAIT:
        nap = _library(builder, "usleep", ir.FunctionType(ir.IntType(32), [ir.IntType(32)]))
        builder.call(nap, [ir.IntType(32)(NAP)])


@operation
def _sleep(typing: Any, team: Any, at: Any) -> Any:
    """Sleep while a word is 1, or shorter."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _futex(builder, _word(context, builder, signature, args), WAIT, 1)
        return context.get_dummy_value()

    return types.none(team, types.intp), generate


@operation
def _wake_up(typing: Any, team: Any, at: Any) -> Any:
    """Wake the thread that sleeps at a word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _futex(builder, _word(context, builder, signature, args), WAKE, 1)
        return context.get_dummy_value()

    return types.none(team, types.intp), generate


@operation
def _write_call(typing: Any, team: Any) -> Any:
    """Write to the team where the call of this function is to be found: a function of two words, and the first."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function, words = builder.function, address_of(context, builder, team, args[0])
        given = function.args[2:]  # after those for the result and for an exception
        kept = cgutils.alloca_once(builder, ir.LiteralStructType([a.type for a in given]))
        for k, value in enumerate(given):
            builder.store(value, cgutils.gep_inbounds(builder, kept, 0, k))
        for at, value in ((FUNCTION, _caller(function, kept.type)), (ARGUMENTS, kept)):
            builder.store(builder.ptrtoint(value, _int64), builder.gep(words, [_int64(at)]))
        return context.get_dummy_value()

    return types.none(team), generate


def _caller(function: Any, kept: Any) -> Any:
    """Return a function that calls `function` with the arguments that it finds at an address, but another number."""
    kind = ir.FunctionType(_int64, [_int64, _int64])
    caller = ir.Function(function.module, kind, function.module.get_unique_name("other_threads"))
    caller.linkage = "internal"
    builder = ir.IRBuilder(caller.append_basic_block())
    address, number = caller.args
    given = builder.inttoptr(address, kept)
    values = [builder.load(cgutils.gep_inbounds(builder, given, 0, k)) for k in range(len(function.args) - 2)]
    places = [builder.alloca(argument.type.pointee) for argument in function.args[:2]]
    status = builder.call(function, [*places, number, *values[1:]])
    builder.ret(builder.zext(builder.icmp_signed("!=", status, ir.Constant(status.type, 0)), _int64))
    return caller


@operation
def _call(typing: Any, function: Any, arguments: Any, number: Any) -> Any:
    """Call what `_write_call` wrote; return 1 if that failed."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_int64, [_int64, _int64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, types.int64), generate


@inlined
def _wake(team, number):  # type: ignore[no-untyped-def]
    """Wake the two threads that this one wakes, if they sleep: these wake others."""
    for k in range(2 * number + 1, min(2 * number + 3, team[SIZE])):
        if load(team, ASLEEP + k * WORDS) and swap(team, ASLEEP + k * WORDS, 0):
            _wake_up(team, ASLEEP + k * WORDS)


@inlined
def fork(team, number, most):  # type: ignore[no-untyped-def]
    """Let up to `most` threads, this one included, run the call that this is in; return what `join` is given.

    The others have that call themselves, and do not call for more. If another call has the team, nobody comes.
    """
    control = _flush()
    called = number == 0 and most > 1 and replace(team, BUSY, 0, 1)
    if called:
        store(team, LEFT, 0)
        store(team, FAULTS, 0)
        store(team, SIZE, most)
        _write_call(team)
        store(team, STATE, (load(team, STATE) // CALL + 1) * CALL + OPEN)
        _wake(team, 0)
    return called, control


@inlined
def join(team, forked):  # type: ignore[no-untyped-def]
    """Wait until all threads that came are done; return how many failed. All that they wrote is seen then."""
    called, control = forked
    _restore(control)
    faults = 0
    if called:
        came = both(team, STATE, ~OPEN) & ENTERED
        for _ in range(load(team, SPINS)):
            if load(team, LEFT) == came:
                break
            _pause()
        while load(team, LEFT) != came:
            store(team, WAITING, 1)
            if load(team, LEFT) != came:
                _sleep(team, WAITING)
        store(team, WAITING, 0)
        faults = load(team, FAULTS)
        store(team, BUSY, 0)
    return faults


@inlined
def _wait(team, asleep, seen):  # type: ignore[no-untyped-def]
    """Wait for another call than the one that was seen last."""
    for _ in range(load(team, SPINS)):
        if load(team, STATE) // CALL != seen:
            return
        _pause()
    while load(team, STATE) // CALL == seen:
        store(team, asleep, 1)
        if load(team, STATE) // CALL == seen:
            _sleep(team, asleep)
    store(team, asleep, 0)


@jit
def serve(team, number):  # type: ignore[no-untyped-def]
    """Run calls, as thread `number` of the team, until it ends."""
    seen, asleep = np.int64(0), ASLEEP + number * WORDS
    while not load(team, ENDED):
        state = load(team, STATE)
        size, function, arguments = load(team, SIZE), load(team, FUNCTION), load(team, ARGUMENTS)
        if state // CALL == seen:
            _wait(team, asleep, seen)
        elif number >= size or not state & OPEN:
            seen = state // CALL
        elif replace(team, STATE, state, state + 1):  # else another thread came, or it is another call by now
            seen = state // CALL
            _wake(team, number)
            if _call(function, arguments, number):
                add(team, FAULTS, 1)
            add(team, LEFT, 1)
            if swap(team, WAITING, 0):
                _wake_up(team, WAITING)


@jit
def dismiss(team, size):  # type: ignore[no-untyped-def]
    """Let the threads of a team of `size` end; there is no call."""
    store(team, ENDED, 1)
    add(team, STATE, CALL)
    for k in range(1, size):
        if swap(team, ASLEEP + k * WORDS, 0):
            _wake_up(team, ASLEEP + k * WORDS)
