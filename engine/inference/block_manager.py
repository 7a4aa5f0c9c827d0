"""Blocks of the KV cache: allocation, sharing of equal prefixes, reuse. No torch.

    free ──allocate──▶ held by 1, 2, … sequences ──last release──▶ kept for reuse ──needed──▶ free
                                                 └─ nothing to reuse ─────────────────────▶ free

A full block is identified by a digest of (version, digest of the block before it, its tokens), so equal digests mean
equal prefixes under equal weights. Blocks are listed when they are allocated, not when they are computed: the samples
of one prompt start together and share blocks that the first of them still computes (`num_computed`).

Invariants:
- a block is free, kept for reuse, or held by exactly as many tables as its count;
- a digest identifies one block, and a block that is not computed is never kept for reuse;
- a block computed by other weights is never found: `forget` drops all digests, and tables from before it add none;
- memory is allocated (`num_backed`) only when the held blocks do not fit into the memory allocated so far.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

BLOCK_TOKENS: Final = 16  # small enough that short prompts share, large enough that a table is short
_DIGEST_BYTES: Final = 16

Beginning = tuple[bytes, tuple[int, ...]]
"""The digest of the full blocks, and the tokens after them."""


@dataclass(slots=True, kw_only=True, eq=False)
class BlockTable:
    tokens: list[int]
    """The sequence's own list, which grows with the sequence."""
    shareable: bool = True
    """True if other sequences may find these blocks; False if other weights computed some of them."""
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    """Digests of the first blocks: each is listed, for this block or for an equal one that was listed before."""
    generation: int = -1


class BlockManager:
    def __init__(self, num_blocks: int, *, num_backed: int, version: int, block_tokens: int = BLOCK_TOKENS) -> None:
        """`num_backed`: blocks with memory at first; grows with the held blocks, up to `num_blocks`."""
        self.num_blocks = num_blocks
        self.num_backed = 0
        self.block_tokens = block_tokens
        self._generation = 0
        self._root = _root_digest(version)
        self._free: list[int] = []
        self._counts: list[int] = []
        self._computed = bytearray()
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()  # in the order of release
        self._add_blocks(min(num_backed, num_blocks))

    @property
    def num_held(self) -> int:
        return self.num_backed - len(self._free) - len(self._kept)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    # Allocate ----------------------------------------------------------------------------------------------------

    def can_allocate(self, table: BlockTable, *, spare: int = 0) -> bool:
        """True if there is room for the table's tokens and `spare` blocks more."""
        wanted = self.blocks_for(len(table.tokens)) + spare
        if wanted <= self._num_available():
            return True
        shared = self._find(self._known_digests(table))
        return wanted - sum(1 for block in shared if self._counts[block]) <= self._num_available()

    def allocate(self, table: BlockTable) -> None:
        """Allocates blocks for the table's tokens and shares known blocks of their prefix. The block of the last token
        is never shared: that token is decoded next, which writes to its block."""
        digests = self._known_digests(table)
        table.blocks = self._find(digests)
        for block in table.blocks:
            self._hold(block)
        num_found = len(table.blocks)
        self.extend(table)
        self._list_blocks(table.blocks[num_found:], digests[num_found:])

    def beginning(self, table: BlockTable) -> Beginning | None:
        """Identifies all tokens but the last: with equal beginnings, keys and values are equal too. None: other weights
        computed some of them."""
        if not table.shareable:
            return None
        digests = self._known_digests(table)
        return digests[-1] if digests else self._root, tuple(table.tokens[len(digests) * self.block_tokens : -1])

    def can_extend(self, table: BlockTable) -> bool:
        return self.blocks_for(len(table.tokens)) - len(table.blocks) <= self._num_available()

    def extend(self, table: BlockTable) -> None:
        while len(table.blocks) < self.blocks_for(len(table.tokens)):
            table.blocks.append(self._take())

    def release(self, table: BlockTable) -> None:
        for block in reversed(table.blocks):  # the ends of prefixes are evicted before their beginnings
            self._counts[block] -= 1
            if self._counts[block]:
                continue
            if block in self._digest_of and self._computed[block]:
                self._kept[block] = None
            else:
                self._unlist(block)
                self._free.append(block)
        table.blocks = []

    # Compute and reuse -------------------------------------------------------------------------------------------

    def num_computed(self, table: BlockTable) -> int:
        """The number of the table's first tokens whose blocks are computed."""
        blocks = table.blocks
        first_missing = next((i for i, block in enumerate(blocks) if not self._computed[block]), len(blocks))
        return first_missing * self.block_tokens

    def mark_computed(self, table: BlockTable, num_tokens: int) -> None:
        """The first `num_tokens` tokens are computed, or will be before they are read."""
        for block in table.blocks[: num_tokens // self.block_tokens]:
            self._computed[block] = 1

    def may_publish(self, table: BlockTable, num_tokens: int) -> bool:
        """True if the first `num_tokens` tokens fill shareable blocks that are not listed yet."""
        current = table.shareable and table.generation == self._generation
        return current and num_tokens // self.block_tokens > len(table.digests)

    def publish(self, table: BlockTable, num_tokens: int) -> None:
        """Lists the full blocks of the first `num_tokens` tokens, which are computed, for other sequences to find."""
        if self.may_publish(table, num_tokens):
            num_listed, num_full = len(table.digests), num_tokens // self.block_tokens
            self._digest(table, num_full)
            self.mark_computed(table, num_tokens)
            self._list_blocks(table.blocks[num_listed:num_full], table.digests[num_listed:])

    def forget(self, version: int) -> None:
        """New weights: no present block may be found any more. Held blocks stay held."""
        self._generation += 1
        self._root = _root_digest(version)
        self._digest_of.clear()
        self._block_of.clear()
        self._free += self._kept
        self._kept.clear()

    # Digests -----------------------------------------------------------------------------------------------------

    def _known_digests(self, table: BlockTable) -> list[bytes]:
        """Digests of all full blocks but the last token's."""
        if table.generation != self._generation:
            table.generation, table.digests = self._generation, []
        if table.shareable:
            self._digest(table, (len(table.tokens) - 1) // self.block_tokens)
        return table.digests

    def _digest(self, table: BlockTable, num_full: int) -> None:
        size, digests = self.block_tokens, table.digests
        for start in range(len(digests) * size, num_full * size, size):
            content = array("q", table.tokens[start : start + size]).tobytes()
            before = digests[-1] if digests else self._root
            digests.append(blake2b(content, key=before, digest_size=_DIGEST_BYTES).digest())

    def _find(self, digests: Sequence[bytes]) -> list[int]:
        blocks: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _list_blocks(self, blocks: Iterable[int], digests: Iterable[bytes]) -> None:
        for block, digest in zip(blocks, digests, strict=False):
            if digest not in self._block_of:
                self._block_of[digest] = block
                self._digest_of[block] = digest

    def _unlist(self, block: int) -> None:
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]

    # Blocks ------------------------------------------------------------------------------------------------------

    def _num_available(self) -> int:
        return self.num_blocks - self.num_held

    def _take(self) -> int:
        if not self._free and not self._kept:
            assert self.num_backed < self.num_blocks, "can_allocate or can_extend would have refused"
            self._add_blocks(min(max(2 * self.num_backed, 1), self.num_blocks))
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            self._unlist(block)
        self._counts[block] = 1
        self._computed[block] = 0
        return block

    def _hold(self, block: int) -> None:
        if not self._counts[block]:
            del self._kept[block]
        self._counts[block] += 1

    def _add_blocks(self, num_blocks: int) -> None:
        added = num_blocks - self.num_backed
        self._free += range(num_blocks - 1, self.num_backed - 1, -1)
        self._counts += [0] * added
        self._computed += bytes(added)
        self.num_backed = num_blocks


def _root_digest(version: int) -> bytes:
    return blake2b(str(version).encode(), digest_size=_DIGEST_BYTES).digest()
