// The loop of attention's forward pass: rows of queries over tiles of FWD_KEYS keys, after Dao, "FlashAttention-2" (2023).
// What comes out for a row depends on its query and on the keys and values that it sees, in their order, and on nothing else: not on
// the rows beside it, on how many rows a block takes, or on tiles that come behind its last key. So whoever attends by this
// loop gets the same bits. Put behind tiles.cuh.

#define FWD_KEYS 64

// o, and what exp is taken relative to and summed up to, of 16·MT rows for each warp. Queries are in shared memory or on their
// way there, uncommitted; `sk` and `sv` have room for two tiles each. `load_k(to, t)` and `load_v(to, t)` ask for tile t of
// `count`. Every row of this warp sees the first `whole` keys, and row h·8 + lane / 4 of its m-th sixteen the keys up to
// `last(m, h)`.
template <int MT, class Keys, class Values, class Last>
__device__ __forceinline__ void attend(float (*o)[NTILES][4], float (*max_)[2], float (*sum)[2], u32 my_q, u32 sk, u32 sv, int count,
                                       int whole, float c2, Keys load_k, Values load_v, Last last) {
    constexpr u32 STAGE = FWD_KEYS * LD * 2;
    int lane = threadIdx.x & 31;
    load_k(sk, 0);
    copy_commit();
    load_v(sv, 0);
    copy_commit();
    clear<MT, NTILES>(o);
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) { max_[m][h] = -INF; sum[m][h] = 0.0f; }

    for (int t = 0; t < count; t++) {
        u32 stage = (t & 1) * STAGE;
        copy_wait<1>();
        __syncthreads();
        bool more = t + 1 < count;
        if (more) load_k(sk + (STAGE - stage), t + 1);
        copy_commit();

        float s[MT][8][4];
        clear<MT, 8>(s);
        scores<MT, 8>(s, my_q, sk + stage + lane_b());

        int first = t * FWD_KEYS;
        if (first + FWD_KEYS > whole) {
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (first + n * 8 + (lane & 3) * 2 + (i & 1) > last(m, i >> 1)) s[m][n][i] = -INF;
        }
        u32 p[MT][4][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float top = max_[m][h];
#pragma unroll
                for (int n = 0; n < 8; n++) top = fmaxf(top, fmaxf(s[m][n][h * 2], s[m][n][h * 2 + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                // Exactly 1 where the largest score stays: tiles without a visible key leave no trace.
                float shift = top * c2, old = exp2_fast((max_[m][h] - top) * c2), add = 0.0f;
                max_[m][h] = top;
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float e = exp2_fast(fmaf(s[m][n][h * 2 + i], c2, -shift));
                        s[m][n][h * 2 + i] = e;
                        add += e;
                    }
                sum[m][h] = sum[m][h] * old + add;
#pragma unroll
                for (int n = 0; n < NTILES; n++) { o[m][n][h * 2] *= old; o[m][n][h * 2 + 1] *= old; }
            }
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int j = 0; j < 4; j++) as_operand(p[m][j], s[m][2 * j], s[m][2 * j + 1]);

        copy_wait<1>();
        __syncthreads();
        if (more) load_v(sv + (STAGE - stage), t + 1);
        copy_commit();
        weighted<MT, 4>(o, p, sv + stage + lane_a());
    }
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = sum[m][h];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            sum[m][h] = total;
            float inv = 1.0f / total;
#pragma unroll
            for (int n = 0; n < NTILES; n++) { o[m][n][h * 2] *= inv; o[m][n][h * 2 + 1] *= inv; }
        }
}

// Writes 16·MT rows of results times `factor`; `row` is the first, rows from `valid` on are left alone.
template <int MT>
__device__ __forceinline__ void store_rows(bf16* to, long long stride, float (*c)[NTILES][4], int row, int valid, float factor) {
    int l = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + m * 16 + half * 8 + (l >> 2);
            if (r < valid) {
                bf16* p = to + (long long)r * stride + (l & 3) * 2;
#pragma unroll
                for (int n = 0; n < NTILES; n++)
                    *(u32*)(p + n * 8) = pack_bf16(c[m][n][half * 2] * factor, c[m][n][half * 2 + 1] * factor);
            }
        }
}
