"""Thread teams: threads that wait in compiled code and share a call of a compiled function, without the interpreter.

A compiled function whose first argument is an ``int64`` called `number` calls `fork`. From then on the other threads of
the team execute the same call, with numbers from 1 on, until `join`. The call does not wait for threads that are late:
another process may have the core, or the threads were lost in a fork of the process. Work must therefore be taken piece
by piece by the threads that are present.

The threads share a `team`, an array of words; words written by different threads are in different cache lines. Waiting
threads spin for a short time, then sleep in the kernel (a futex).

Subnormal numbers count as zero in such calls, as in single precision on GPUs. x86 cores take up to a hundred times as
long for them, and values that updates keep shrinking, as in CP-APR, would become subnormal.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from partitioner.host.jit import inner, jit

from .vectors import address_of, operation

if TYPE_CHECKING:
    from .vectors import Builder, Context, Operation, Signature, Type, Typing, Value, Values

inlined = numba.njit(inline="always")

WORDS = 8  # per cache line
STATE, FUNCTION, ARGUMENTS, SIZE, SPINS = range(5)
"""Words of the first line: state of the call (see `ENTERED`), function, arguments, number of threads, spin count."""
LEFT, WAITING = WORDS, WORDS + 1
"""The number of threads that have finished the call; whether its caller sleeps until all have."""
BUSY, FAULTS, ENDED = 2 * WORDS, 2 * WORDS + 1, 2 * WORDS + 2
"""Whether a call is active; the number of threads that failed; whether the threads must exit."""
ASLEEP = 3 * WORDS  # word of thread k: whether it sleeps (ASLEEP + k * WORDS)
ENTERED, OPEN, CALL = (1 << 16) - 1, 1 << 16, 1 << 17
"""Fields of `STATE`: the threads that have entered the call, whether more may enter, lowest bit of the call counter."""

# System call number.
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
WAIT, WAKE = 128, 129  # futex operations, private to the process
NAP = 50  # microseconds between polls on a system without futexes
X86 = platform.machine() in ("x86_64", "AMD64")
FLUSH = 1 << 15 | 1 << 6  # bits of the control register: subnormal results and operands are zero

_int64 = ir.IntType(64)


def _word(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
    return builder.gep(address_of(context, builder, signature.args[0], args[0]), [args[1]])


@operation
def load(typing: Typing, team: Type, at: Type) -> Operation:
    """Atomically load a word."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        return builder.load_atomic(_word(context, builder, signature, args), "seq_cst", 8)

    return types.int64(team, types.intp), generate


@operation
def store(typing: Typing, team: Type, at: Type, value: Type) -> Operation:
    """Atomically store a word."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        builder.store_atomic(args[2], _word(context, builder, signature, args), "seq_cst", 8)
        return context.get_dummy_value()

    return types.none(team, types.intp, types.int64), generate


def _atomic(operation_name: str) -> Callable[..., Any]:
    def change(typing: Typing, team: Type, at: Type, value: Type) -> Operation:
        def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
            return builder.atomic_rmw(operation_name, _word(context, builder, signature, args), args[2], "seq_cst")

        return types.int64(team, types.intp, types.int64), generate

    return operation(change)


add, swap, both = _atomic("add"), _atomic("xchg"), _atomic("and")
"""Atomically add, exchange, or bitwise-and a word; return its old value."""


@operation
def replace(typing: Typing, team: Type, at: Type, old: Type, new: Type) -> Operation:
    """Compare and swap: replace a word if it equals `old`; return whether it did."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        word = _word(context, builder, signature, args)
        return builder.extract_value(builder.cmpxchg(word, args[2], args[3], "seq_cst", "seq_cst"), 1)

    return types.boolean(team, types.intp, types.int64, types.int64), generate


@operation
def _pause(typing: Typing) -> Operation:
    """Spin-wait hint to the processor."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        if X86:
            builder.call(_library(builder, "llvm.x86.sse2.pause", ir.FunctionType(ir.VoidType(), [])), [])
        return context.get_dummy_value()

    return types.none(), generate


def _control(builder: Builder, direction: str, word: Value) -> None:
    """Store (`st`) or load (`ld`) this thread's floating-point control register."""
    byte = ir.IntType(8).as_pointer()
    code = _library(builder, f"llvm.x86.sse.{direction}mxcsr", ir.FunctionType(ir.VoidType(), [byte]))
    builder.call(code, [builder.bitcast(word, byte)])


@operation
def _flush(typing: Typing) -> Operation:
    """Treat subnormal numbers as zero in this thread; return the previous control register."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        word = cgutils.alloca_once_value(builder, ir.IntType(32)(0))
        if X86:
            _control(builder, "st", word)
            flushing = cgutils.alloca_once_value(builder, builder.or_(builder.load(word), ir.IntType(32)(FLUSH)))
            _control(builder, "ld", flushing)
        return builder.load(word)

    return types.int32(), generate


@operation
def _restore(typing: Typing, control: Type) -> Operation:
    """Restore this thread's control register."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        if X86:
            _control(builder, "ld", cgutils.alloca_once_value(builder, args[0]))
        return context.get_dummy_value()

    return types.none(types.int32), generate


def _library(builder: Builder, name: str, kind: ir.Type) -> ir.Function:
    return cgutils.get_or_insert_function(builder.module, kind, name)


def _futex(builder: Builder, word: Value, action: int, value: int) -> None:
    """Call the futex system call. On systems without it waiting polls, and waking does nothing."""
    if FUTEX:
        call = _library(builder, "syscall", ir.FunctionType(_int64, [_int64], var_arg=True))
        numbers = [_int64(action), _int64(value), _int64(0), _int64(0), _int64(0)]
        builder.call(call, [_int64(FUTEX), builder.ptrtoint(word, _int64), *numbers])
    elif action == WAIT:
        nap = _library(builder, "usleep", ir.FunctionType(ir.IntType(32), [ir.IntType(32)]))
        builder.call(nap, [ir.IntType(32)(NAP)])


@operation
def _sleep(typing: Typing, team: Type, at: Type) -> Operation:
    """Sleep while a word is 1; may return early."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        _futex(builder, _word(context, builder, signature, args), WAIT, 1)
        return context.get_dummy_value()

    return types.none(team, types.intp), generate


@operation
def _wake_up(typing: Typing, team: Type, at: Type) -> Operation:
    """Wake the thread that sleeps on a word."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        _futex(builder, _word(context, builder, signature, args), WAKE, 1)
        return context.get_dummy_value()

    return types.none(team, types.intp), generate


@operation
def _write_call(typing: Typing, team: Type) -> Operation:
    """Store the enclosing call in the team: a function that repeats it, and the address of its arguments."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        function, words = builder.function, address_of(context, builder, team, args[0])
        arguments = function.args[2:]  # after those for the result and the exception
        saved = cgutils.alloca_once(builder, ir.LiteralStructType([a.type for a in arguments]))
        for k, value in enumerate(arguments):
            builder.store(value, cgutils.gep_inbounds(builder, saved, 0, k))
        for at, value in ((FUNCTION, _caller(function, saved.type)), (ARGUMENTS, saved)):
            builder.store(builder.ptrtoint(value, _int64), builder.gep(words, [_int64(at)]))
        return context.get_dummy_value()

    return types.none(team), generate


def _caller(function: ir.Function, saved_type: ir.Type) -> ir.Function:
    """Return a function that calls `function` with the arguments stored at an address, but with another number."""
    kind = ir.FunctionType(_int64, [_int64, _int64])
    caller = ir.Function(function.module, kind, function.module.get_unique_name("other_threads"))
    caller.linkage = "internal"
    builder = ir.IRBuilder(caller.append_basic_block())
    address, number = caller.args
    arguments = builder.inttoptr(address, saved_type)
    values = [builder.load(cgutils.gep_inbounds(builder, arguments, 0, k)) for k in range(len(function.args) - 2)]
    outputs = [builder.alloca(argument.type.pointee) for argument in function.args[:2]]
    status = builder.call(function, [*outputs, number, *values[1:]])
    builder.ret(builder.zext(builder.icmp_signed("!=", status, ir.Constant(status.type, 0)), _int64))
    return caller


@operation
def _call(typing: Typing, function: Type, arguments: Type, number: Type) -> Operation:
    """Run the call stored by `_write_call`; return 1 if it failed."""

    def generate(context: Context, builder: Builder, signature: Signature, args: Values) -> Value:
        kind = ir.FunctionType(_int64, [_int64, _int64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, types.int64), generate


@inlined
def _wake(team, number):  # type: ignore[no-untyped-def]
    """Wake up to two threads, which wake further ones."""
    for k in range(2 * number + 1, min(2 * number + 3, team[SIZE])):
        if load(team, ASLEEP + k * WORDS) and swap(team, ASLEEP + k * WORDS, 0):
            _wake_up(team, ASLEEP + k * WORDS)


@inner
def _open(team, number, most):  # type: ignore[no-untyped-def]
    """Reserve the team for a call, if it is free; return the argument of `join`."""
    control = _flush()
    called = number == 0 and most > 1 and replace(team, BUSY, 0, 1)
    if called:
        store(team, LEFT, 0)
        store(team, FAULTS, 0)
        store(team, SIZE, most)
    return called, control


@inner
def _start(team):  # type: ignore[no-untyped-def]
    """Start the threads on the call stored in the team."""
    store(team, STATE, (load(team, STATE) // CALL + 1) * CALL + OPEN)
    _wake(team, 0)


@inlined
def fork(team, number, most):  # type: ignore[no-untyped-def]
    """Start a shared call: up to `most` threads, this one included, execute it. Return the argument of `join`.

    In the other threads this does nothing. Nor does it if the team is busy with another call; then no thread joins.
    `_write_call` depends on the enclosing function; all other code is compiled once for all kernels.
    """
    forked = _open(team, number, most)
    if forked[0]:
        _write_call(team)
        _start(team)
    return forked


@inner
def join(team, forked):  # type: ignore[no-untyped-def]
    """Wait until all threads that entered are done; return how many failed. Their writes are visible afterwards."""
    called, control = forked
    _restore(control)
    faults = 0
    if called:
        entered = both(team, STATE, ~OPEN) & ENTERED
        for _ in range(load(team, SPINS)):
            if load(team, LEFT) == entered:
                break
            _pause()
        while load(team, LEFT) != entered:
            store(team, WAITING, 1)
            if load(team, LEFT) != entered:
                _sleep(team, WAITING)
        store(team, WAITING, 0)
        faults = load(team, FAULTS)
        store(team, BUSY, 0)
    return faults


@inlined
def _wait(team, asleep, seen):  # type: ignore[no-untyped-def]
    """Wait until the call differs from number `seen`."""
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
    """Execute calls as thread `number` of the team until the team is dismissed."""
    seen, asleep = np.int64(0), ASLEEP + number * WORDS
    while not load(team, ENDED):
        state = load(team, STATE)
        size, function, arguments = load(team, SIZE), load(team, FUNCTION), load(team, ARGUMENTS)
        if state // CALL == seen:
            _wait(team, asleep, seen)
        elif number >= size or not state & OPEN:
            seen = state // CALL
        elif replace(team, STATE, state, state + 1):  # otherwise the state has changed: try again
            seen = state // CALL
            _wake(team, number)
            if _call(function, arguments, number):
                add(team, FAULTS, 1)
            add(team, LEFT, 1)
            if swap(team, WAITING, 0):
                _wake_up(team, WAITING)


@jit
def dismiss(team, size):  # type: ignore[no-untyped-def]
    """Make the threads of a team of `size` exit; no call may be active."""
    store(team, ENDED, 1)
    add(team, STATE, CALL)
    for k in range(1, size):
        if swap(team, ASLEEP + k * WORDS, 0):
            _wake_up(team, ASLEEP + k * WORDS)
