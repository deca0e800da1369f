// What filters keep of a row of logits. Put before the source that draws.

// The weights of a row: exp((logit − top) · scale), of which the bits are in the same order as the values.
struct Row {
    const float* logits;
    int vocab;
    float top, scale;
    __device__ __forceinline__ float at(int i) const { return expf((logits[i] - top) * scale); }
};

#define DIGIT 10 // bits of a weight that are looked at in one walk over a row; three walks see all of the 30 that count

// Per value of a digit, how many weights have it and their sum, in units of 2^-40: whole numbers, so that their order does
// not matter.
struct Bins {
    u32 count[1 << DIGIT], low[1 << DIGIT], high[1 << DIGIT];
    u32 digit;
    u64 rest;
};

__device__ __forceinline__ u64 in_units(float w) { return __float2ull_rn(w * 1099511627776.0f); }

// The largest weight such that those of at least as much, not counting any below `floor`, are `want` in number, or sum to at
// least `want` where `by_sum`; as bits. `floor` where all together are less. For a block of 512 threads.
__device__ u32 threshold(const Row& row, u32 floor, u64 want, bool by_sum, Bins& bins) {
    u32 prefix = 0;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int shift = 2 * DIGIT; shift >= 0; shift -= DIGIT) {
        __syncthreads();
        for (int i = threadIdx.x; i < 1 << DIGIT; i += 512) bins.count[i] = bins.low[i] = bins.high[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < row.vocab; i += 512) {
            float w = row.at(i);
            u32 key = __float_as_uint(w);
            if (key < floor || key == 0 || (shift < 2 * DIGIT && key >> (shift + DIGIT) != prefix)) continue;
            u32 bin = key >> shift & ((1 << DIGIT) - 1);
            if (!by_sum) { atomicAdd(&bins.count[bin], 1u); continue; }
            u64 units = in_units(w);
            u32 low = (u32)units, old = atomicAdd(&bins.low[bin], low), high = (u32)(units >> 32) + (old + low < old);
            if (high) atomicAdd(&bins.high[bin], high);
        }
        __syncthreads();
        if (warp == 0) {
            // A lane has 32 neighbours, the first lane the highest.
            auto in = [&](int bin) { return by_sum ? (u64)bins.high[bin] << 32 | bins.low[bin] : (u64)bins.count[bin]; };
            int top = (1 << DIGIT) - 1 - lane * 32;
            u64 own = 0, before = 0, all = 0;
            for (int j = 0; j < 32; j++) own += in(top - j);
            for (int i = 0; i < 32; i++) {
                if (i == lane) before = all;
                all += __shfl_sync(0xffffffffu, own, i);
            }
            if (lane == 0 && all < want) { bins.digit = 1 << DIGIT; bins.rest = 0; }
            if (all >= want && before < want && before + own >= want) {
                int bin = top;
                while (before + in(bin) < want) before += in(bin--);
                bins.digit = bin;
                bins.rest = want - before;
            }
        }
        __syncthreads();
        if (bins.digit >> DIGIT) return floor;
        prefix = prefix << DIGIT | bins.digit;
        want = bins.rest;
    }
    return prefix > floor ? prefix : floor;
}

// The bits of the least weight that the filters keep: `min_p` of the greatest one, then the `top_k` greatest and those equal to
// the last of them, then the fewest of the greatest that sum to `top_p` of what is left and those equal to the last of them.
__device__ u32 filter(const Row& row, int top_k, float top_p, float min_p, Bins& bins) {
    u32 floor = min_p > 0.0f ? __float_as_uint(min_p) : 0;
    if (top_k > 0 && top_k < row.vocab) floor = threshold(row, floor, top_k, false, bins);
    if (top_p < 1.0f) {
        __syncthreads();
        if (threadIdx.x == 0) bins.rest = 0;
        __syncthreads();
        u64 own = 0;
        for (int i = threadIdx.x; i < row.vocab; i += 512) {
            float w = row.at(i);
            if (__float_as_uint(w) >= floor) own += in_units(w);
        }
        for (int i = 16; i > 0; i >>= 1) own += __shfl_xor_sync(0xffffffffu, own, i);
        if ((threadIdx.x & 31) == 0) atomicAdd(&bins.rest, own);
        __syncthreads();
        u64 want = (u64)((double)bins.rest * top_p);
        floor = threshold(row, floor, want > 0 ? want : 1, true, bins);
    }
    return floor;
}
