"""Mistakes put on purpose into the overflow on Redis: `tests/mutants.py` tries them."""

from typing import Final

from tests.mutations import Mutant

REDIS: Final = "simulation/test_simulation_redis.py"

MUTANTS: Final[dict[str, Mutant]] = {
    "what was cut off is forgotten where copies follow": Mutant(
        "overflow/read_ahead.py",
        "cut = min(cut, gathered.cut(kept_max))  # without",
        "cut = gathered.cut(kept_max)  # without",
        suite="property/overflow/test_read_ahead.py",
    ),
    "what was written since a reading isn't there": Mutant(
        "overflow/read_ahead.py",
        "firsts = [*self.rows[:1], *self._added]",
        "firsts = [*self.rows[:1]]",
        suite="property/overflow/test_read_ahead.py",
    ),
    "a promotion forgets the fine level": Mutant(
        "overflow/chunk_reader.py",
        "for level in LEVELS:\n            found, reach",
        "for level in LEVELS[:1]:\n            found, reach",
        suite=REDIS,
    ),
    "of the headers only the first page is read": Mutant(
        "overflow/chunk_reader.py",
        "if len(page) < HEADERS_PER_PAGE or",
        "if len(page) <= HEADERS_PER_PAGE or",
        suite=REDIS,
    ),
    "the first header of a second page is passed over": Mutant(
        "overflow/scripts.py", "rank + 1, rank + tonumber", "rank + 2, rank + tonumber", suite=REDIS
    ),
    "struck copies are promoted": Mutant(
        "overflow/chunk_reader.py", "yield self._unstruck(records) if struck else records", "yield records", suite=REDIS
    ),
    "a slot goes while a part of it is not settled": Mutant(
        "overflow/tidying.py",
        'f"({level.start_ms(max(settled.due_ms, 0))}"',
        'f"({level.start_ms(max(settled.due_ms, 0)) + level.slot_ms}"',
        suite=REDIS,
    ),
    "headers go ahead of their contents": Mutant(
        "overflow/tidying.py",
        "        calls.append((REMOVE, keys",
        "        calls.append((UNLINK, keys[:1]",
        suite=REDIS,
    ),
    "what is written isn't in what was read ahead": Mutant(
        "overflow/redis_overflow.py", "            ahead.add(change.records)\n", "", suite=REDIS
    ),
    "what is struck stays in what was read ahead": Mutant(
        "overflow/redis_overflow.py",
        "            ahead.strike({copy.position.offset for copy in change.struck})\n",
        "",
        suite=REDIS,
    ),
    "a number that is one too low is no loss": Mutant(
        "overflow/interface.py", "    if hw < acknowledged:", "    if hw < acknowledged - 1:", suite=REDIS
    ),
    "a missing content is passed over": Mutant(
        "overflow/chunk_reader.py",
        "                    self._explain_missing(header)\n",
        "                    continue\n",
        suite=REDIS,
    ),
    "chunks that begin before what is asked for are not read": Mutant(
        "overflow/chunk_reader.py",
        "low, high, last = level.start_ms(max(after.due_ms, 0)), until.due_ms",
        "low, high, last = after.due_ms, until.due_ms",
        suite=REDIS,
    ),
    "the cascade removes before it has written": Mutant(
        "overflow/tidying.py",
        "    if parts:\n        link.run_all([_add_call(reader, part, chosen) for part in parts])\n",
        "    for page in pages(chosen):\n"
        "        link.run(REMOVE, [reader.keys.level(COARSE), *map(reader.keys.slot, page)],\n"
        "                 [len(page), *(header.member for header in page)])\n"
        "    if parts:\n        link.run_all([_add_call(reader, part, chosen) for part in parts])\n",
        suite=REDIS,
    ),
    "what is struck is forgotten a slot too early": Mutant(
        "overflow/redis_overflow.py", 'f"({due_ms}"', 'f"({due_ms + FINE.slot_ms}"', suite=REDIS
    ),
    "what another wrote isn't in what was read ahead": Mutant(
        "overflow/redis_overflow.py", "        return hw == ahead.hw\n", "        return True\n", suite=REDIS
    ),
    "all is known, whatever chunk comes next": Mutant(
        "overflow/read_ahead.py",
        "        limit = min(limit, just_before(headers[stop].first))\n",
        "        pass\n",
        suite=REDIS,
    ),
    "all is known, whatever was dropped": Mutant(
        "overflow/read_ahead.py", "    limit = min(limit, cut)\n", "", suite=REDIS
    ),
    "a chunk of which rows were dropped counts as opened": Mutant(
        "overflow/read_ahead.py", "if limit < last <= cut}", "if limit < last}", suite=REDIS
    ),
    "half of a large chunk lacks a record": Mutant(
        "overflow/chunk.py",
        "            self._pack_run(run[middle:], packed)\n",
        "            self._pack_run(run[middle + 1 :], packed)\n",
        suite=REDIS,
    ),
    "a chunk is given out from one too late": Mutant(
        "overflow/chunk.py",
        "            self.start = bisect_right(rows, after, key=position)",
        "            self.start = bisect_right(rows, after, key=position) + 1",
        suite=REDIS,
    ),
    "blocks of several partitions are written as one's": Mutant(
        "overflow/chunk_writer.py", "            and follows(last, block)\n", "", suite=REDIS
    ),
    "a block is written although the one before is missing": Mutant(
        "overflow/scripts.py",
        "if hw ~= tonumber(ARGV[1]) - 1 then return hw end",
        "if hw > tonumber(ARGV[1]) - 1 then return hw end",
        suite=REDIS,
    ),
    "a rebuild goes on from more than there is": Mutant(
        "overflow/scripts.py",
        "if hw < tonumber(ARGV[1]) or hw >= tonumber(ARGV[2]) then return hw end",
        "if hw >= tonumber(ARGV[2]) then return hw end",
        suite=REDIS,
    ),
}
