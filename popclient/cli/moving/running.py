"""`popmq move start|finish|back`: run the move in the foreground, until it is done or stopped."""

from __future__ import annotations

import asyncio
import signal
from argparse import Namespace
from collections.abc import Awaitable, Callable

from popclient._tasks import begin_task
from popclient.cli import OK, REFUSED
from popclient.cli.arguments import confirm
from popclient.cli.mirroring.running import Shown, record
from popclient.cli.mirroring.sides import open_sides
from popclient.cli.output import print_error, report
from popclient.errors import PopError
from popclient.mirror.popmq import PopMQSide
from popclient.moving.mover import Mover
from popclient.moving.moves import Move, MoveFile, Stage

SHOW_S = 2.0


def start(arguments: Namespace) -> int:
    return asyncio.run(_run(arguments, _start, _about_start))


def finish(arguments: Namespace) -> int:
    return asyncio.run(_run(arguments, _finish, _about_finish))


def back(arguments: Namespace) -> int:
    return asyncio.run(_run(arguments, _back, _about_back))


async def _start(mover: Mover, stop: asyncio.Event) -> list[str]:
    await mover.start(stop)
    return ["stopped; go on with popmq move start, finish or back"]


async def _finish(mover: Mover, stop: asyncio.Event) -> list[str]:
    found = await mover.finish(stop)
    return [*found, "finished"] if found else ["stopped; go on with popmq move finish or back"]


async def _back(mover: Mover, stop: asyncio.Event) -> list[str]:
    if mover.move.stage is not Stage.RUNNING:
        raise PopError("the move has not begun, so nothing has to go back")
    await mover.back(stop)
    return ["stopped; go on with popmq move back or finish"]


def _about_start(move: Move) -> str:
    waiting = [each.name for each in move.in_order if not each.is_switched]
    if not waiting:
        return ""
    return (
        f"refuses the producers of {', '.join(waiting)} at {move.old.endpoint} from now on, and takes them at"
        f" {move.new.endpoint}"
    )


def _about_finish(move: Move) -> str:
    return f"refuses all producers of {', '.join(each.name for each in move.topics)} at {move.old.endpoint}"


def _about_back(move: Move) -> str:
    first = move.new.endpoint if move.is_turned else move.old.endpoint
    return f"moves {', '.join(each.name for each in move.topics)} back to {first}"


async def _run(
    arguments: Namespace,
    work: Callable[[Mover, asyncio.Event], Awaitable[list[str]]],
    about: Callable[[Move], str],
) -> int:
    file = MoveFile(arguments.file)
    with file.held():
        move = file.load()
        if move.stage is Stage.FINISHED:
            raise PopError(f"the move of {file.path} is finished; plan another one, also for the other direction")
        if move.is_turning and work is not _back:
            raise PopError("the move is being turned back; go on with popmq move back")
        if (what := about(move)) and not confirm(arguments, what, for_good=work is _finish):
            return REFUSED
        arguments.reader, arguments.namespace = move.reader, move.namespace
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with open_sides(arguments, move.old, move.new) as sides:
            in_file = None if any(isinstance(each, PopMQSide) for each in sides) else file.path
            mover = Mover(
                move,
                file.save,
                sides,
                lambda task, source, target: record(in_file, task, source, target, move_id=move.move_id),
                lambda line: print_error(f"popmq: {line}"),
            )
            showing = begin_task(_show(arguments, mover))
            try:
                lines = await work(mover, stop)
            finally:
                showing.cancel()
    report(arguments, {"stage": move.stage.value, "lines": lines}, lines)
    return OK


async def _show(arguments: Namespace, mover: Mover) -> None:
    """The progress of the mirrors that run now."""
    while True:
        shown = [each for each in mover.mirrors if each is not None]
        with Shown(arguments, shown) as progress:
            while shown == [each for each in mover.mirrors if each is not None]:
                progress.show()
                await asyncio.sleep(SHOW_S)
