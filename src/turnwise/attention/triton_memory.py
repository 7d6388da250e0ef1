"""How the Triton kernels read and write: tiles of 32 tokens, numbers packed into 64-bit words.

A tensor of K numbers per token is kept as (slot, tile, word, lane): a word holds two numbers of 32
bits or four of 16, and the 32 lanes of a warp read 32 neighbouring words.  The words of one token
are a constant distance apart, so that a load costs an instruction and no address arithmetic.
Tiles are padded to their full size; nothing that is written there is ever looked at.
"""

import triton
import triton.language as tl

TILE = tl.constexpr(32)


@triton.jit
def place_in_grid(tiles):
    """Which slot (picture, head and frame) this program works on, and which tokens of it."""
    return (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles * TILE + tl.arange(
        0, 32
    )


@triton.jit
def lane_of(pointer, slot, token, tiles, count: tl.constexpr, HALF: tl.constexpr):
    """Where the first word of each token stands, in a tensor of `count` numbers per token."""
    WORDS: tl.constexpr = (count + 1) // 2 if HALF is None else (count + 3) // 4
    return pointer + slot * tiles * (WORDS * TILE) + (token // TILE * (WORDS * TILE) + token % TILE)


@triton.jit
def unpacked(word):
    """The two floats in a word."""
    low = word.to(tl.int32).to(tl.float32, bitcast=True)
    return low, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def packed(low, high):
    """Two floats as a word."""
    low = low.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    return low | (high.to(tl.int32, bitcast=True).to(tl.int64) << 32)


@triton.jit
def unpacked_halves(word, HALF: tl.constexpr):
    """The two numbers of 16 bits in a word of 32, as floats; bfloat16 is the upper half of one."""
    if tl.bfloat16 == HALF:
        low = (word << 16).to(tl.float32, bitcast=True)
        high = (word & -65536).to(tl.float32, bitcast=True)
    else:
        low = word.to(tl.int16).to(HALF, bitcast=True).to(tl.float32)
        high = (word >> 16).to(tl.int16).to(HALF, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def packed_halves(low, high, HALF: tl.constexpr):
    """Two floats, rounded to 16 bits, as a word of 32."""
    low = low.to(HALF).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return low | (high.to(HALF).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def load_numbers(pointer, count: tl.constexpr, HALF: tl.constexpr):
    """`count` numbers of each lane, and what else is in their last word."""
    row = ()
    if HALF is None:
        for i in tl.static_range((count + 1) // 2):
            row = row + unpacked(tl.load(pointer + i * TILE))
    else:
        for i in tl.static_range((count + 3) // 4):
            word = tl.load(pointer + i * TILE)
            row = row + unpacked_halves(word.to(tl.int32), HALF)
            row = row + unpacked_halves((word >> 32).to(tl.int32), HALF)
    return row


@triton.jit
def store_numbers(pointer, row, count: tl.constexpr, HALF: tl.constexpr):
    """Store `count` numbers of each lane; their last word is filled up with zeros."""
    WIDE: tl.constexpr = 2 if HALF is None else 4
    for _ in tl.static_range(WIDE):
        row = row + (tl.zeros_like(row[0]),)
    for i in tl.static_range((count + WIDE - 1) // WIDE):
        if HALF is None:
            word = packed(row[2 * i], row[2 * i + 1])
        else:
            low = packed_halves(row[4 * i], row[4 * i + 1], HALF).to(tl.int64) & 0xFFFFFFFF
            high = packed_halves(row[4 * i + 2], row[4 * i + 3], HALF).to(tl.int64)
            word = low | (high << 32)
        tl.store(pointer + i * TILE, word)


@triton.jit
def load_everywhere(pointer, count: tl.constexpr):
    """`count` floats that are the same for every lane, from consecutive words."""
    row = ()
    for i in tl.static_range((count + 1) // 2):
        row = row + unpacked(tl.load(pointer + i))
    return row
