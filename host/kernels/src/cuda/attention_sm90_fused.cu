// The backward pass of attention_sm90.cu with five products instead of seven: one kernel owns blocks of keys and adds what
// they give to the queries' gradients to sums in memory, in no fixed order. Needs sm_90a and warpgroup.cuh.
//
// The sums are [heads, 2, tokens, D / 2] f32, each row's units of 8 exchanged by the lowest two bits of its token, so that a
// warpgroup writes 64 rows to shared memory without conflicts of banks and they are one piece of memory to add.

#define QUERIES 64 // taken at a time
#define COLUMNS (D / 2) // of a row of the sums
#define QUERY_STAGES 2

// Where a token's row of the sums begins that holds the head's `part`-th 8 columns.
__device__ __forceinline__ long long sums_row(int head, int part, int tokens, int t) {
    return (((long long)head * 2 + part / (COLUMNS / 8)) * tokens + t) * COLUMNS;
}

// Blocks ask for their next item by a counter behind the sums, so that whoever is done takes what is left. One warp asks, an
// item ahead; the others are told by a ring of two.
struct Items {
    Ring<2> ring;
    int numbers[2];
};
__device__ __forceinline__ int take(Items& items, int round) {
    wait_full(items.ring, round);
    int n = items.numbers[round & 1];
    give_back(items.ring, round);
    return n;
}

// delta = out · dout of each token and head, [heads, tokens], and clears the sums and the counter. D / 8 threads take one of them.
extern "C" __global__ void __launch_bounds__(256)
attention_backward_begin(const bf16* __restrict__ out, const bf16* __restrict__ dout, float* __restrict__ delta, float* __restrict__ sums,
                         int heads, int tokens, long long stride) {
    long long i = ((long long)blockIdx.x * 256 + threadIdx.x) / (D / 8);
    bool valid = i < (long long)heads * tokens;
    int t = i / heads, head = i % heads, part = threadIdx.x % (D / 8);
    float sum = 0.0f;
    if (valid) {
        long long at = t * stride + head * D + part * 8;
        float a[8], b[8];
        load8(out + at, a);
        load8(dout + at, b);
#pragma unroll
        for (int c = 0; c < 8; c++) sum += a[c] * b[c];
        float4* to = (float4*)(sums + sums_row(head, part, tokens, t) + part % (COLUMNS / 8) * 8);
        to[0] = to[1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int x = D / 16; x > 0; x >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, x);
    if (i == 0 && part == 0) *(int*)(sums + (long long)heads * tokens * D) = 0;
    if (valid && part == 0) delta[(long long)head * tokens + t] = sum;
}

// dq = sums · scale. A thread takes 8 elements.
extern "C" __global__ void __launch_bounds__(256)
attention_backward_end(const float* __restrict__ sums, bf16* __restrict__ dq, int heads, int tokens, long long stride, float scale) {
    long long i = ((long long)blockIdx.x * 256 + threadIdx.x) / (D / 8);
    if (i >= (long long)heads * tokens) return;
    int t = i / heads, head = i % heads, part = threadIdx.x % (D / 8);
    const float* from = sums + sums_row(head, part, tokens, t) + (part % (COLUMNS / 8) ^ t & 3) * 8;
    float4 a = ((const float4*)from)[0], b = ((const float4*)from)[1];
    float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int c = 0; c < 8; c++) x[c] *= scale;
    store8(dq + t * stride + head * D + part * 8, x);
}

// dk and dv of 128 keys of one key/value head, over all query heads of its group and all later queries, and those queries' sums.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward(const __grid_constant__ Map q, const __grid_constant__ Map k, const __grid_constant__ Map v,
                   const __grid_constant__ Map dout, const float* __restrict__ lse, const float* __restrict__ delta,
                   float* __restrict__ sums, bf16* __restrict__ dk, bf16* __restrict__ dv, const int4* __restrict__ tiles, int work,
                   int kv_heads, int group, int tokens, long long dk_stride, long long dv_stride, float scale) {
    constexpr u32 OWN = ROWS * D * 2, TILE = QUERIES * D * 2, PANEL = QUERIES * 128, WEIGHTS = ROWS * QUERIES * 2;
    constexpr u32 SUM_ROW = COLUMNS * 4, SUMS = QUERIES * SUM_ROW; // of one warpgroup's half of the columns
    enum { WEIGHTS_READY = 1, SUMS_READY = 2, SUMS_TAKEN = 4, WRITE = 6 }; // barriers; all but the first one for each warpgroup
    __shared__ float stats[QUERY_STAGES][2][QUERIES]; // lse · log2 e and delta
    __shared__ Ring<QUERY_STAGES> ring; // queries, dout and their statistics, which each lane writes and reads itself
    __shared__ Ring<1> own; // keys and values
    __shared__ Items items;
    int lane = threadIdx.x & 31, wg = warpgroup();
    u32 sk = smem_base(), sv = sk + OWN, sq = sv + OWN, sd = sq + QUERY_STAGES * TILE, sw = sd + QUERY_STAGES * TILE;
    u32 ss = sw + 2 * WEIGHTS;
    ring_init(ring, 32, WORKERS);
    ring_init(own, 1, WORKERS / 32);
    ring_init(items.ring, 1, WORKERS / 32 + 3);
    rings_made();
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        COPIER_REGISTERS;
        int warp = threadIdx.x / 32 - WORKERS / 32;
        if (warp == 0) { // copies queries
            for (int n, round = 0, at = 0; (n = take(items, round)) < work; round++) {
                int4 tile = tiles[n / kv_heads];
                int head = n % kv_heads * group, end = tile.x + tile.y;
#pragma unroll 1
                do {
#pragma unroll 1
                    for (int row = tile.x + tile.z; row < end; row += QUERIES, at++) {
                        int stage = at % QUERY_STAGES;
                        u32 stat = head * tokens + row + lane;
                        float z[4] = {INF, INF, 0.0f, 0.0f};
                        if (row + lane < end) { z[0] = lse[stat] * LOG2E; z[2] = delta[stat]; }
                        if (row + lane + 32 < end) { z[1] = lse[stat + 32] * LOG2E; z[3] = delta[stat + 32]; }
                        wait_empty(ring, at);
                        float* to = &stats[stage][0][lane];
                        to[0] = z[0]; to[32] = z[1]; to[QUERIES] = z[2]; to[QUERIES + 32] = z[3];
                        const u64* full = ring.full + stage;
                        if (lane == 0) {
                            arrive_expecting(full, 2 * TILE);
                            copy_rows<QUERIES>(sq + stage * TILE, &q, head * D, row, full);
                            copy_rows<QUERIES>(sd + stage * TILE, &dout, head * D, row, full);
                        } else {
                            arrive(full);
                        }
                    }
                } while (++head % group > 0);
            }
        } else if (warp == 3) { // asks for items and copies keys and values
            if (lane == 0)
                for (int n = blockIdx.x, round = 0;; round++) {
                    wait_empty(items.ring, round);
                    items.numbers[round & 1] = n;
                    arrive(items.ring.full + (round & 1));
                    if (n >= work) break;
                    int4 tile = tiles[n / kv_heads];
                    wait_empty(own, round);
                    arrive_expecting(own.full, 2 * OWN);
                    copy_rows<ROWS>(sk, &k, n % kv_heads * D, tile.x + tile.z, own.full);
                    copy_rows<ROWS>(sv, &v, n % kv_heads * D, tile.x + tile.z, own.full);
                    n = gridDim.x + atomicAdd((int*)(sums + (long long)kv_heads * group * tokens * D), 1);
                }
        } else { // adds what a warpgroup wrote
            int of = warp - 1;
            pass(SUMS_TAKEN + of, 160);
            for (int n, round = 0; (n = take(items, round)) < work; round++) {
                int4 tile = tiles[n / kv_heads];
                int head = n % kv_heads * group, len = tile.y;
#pragma unroll 1
                for (int last = head + group; head < last; head++)
#pragma unroll 1
                    for (int first = tile.z; first < len; first += QUERIES) {
                        meet(SUMS_READY + of, 160);
                        if (lane == 0) {
                            float* to = sums + sums_row(head, of * (COLUMNS / 8), tokens, tile.x + first);
                            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                                         ::"l"(to), "r"(ss + of * SUMS), "r"(min(QUERIES, len - first) * (int)SUM_ROW) : "memory");
                            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
                            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
                        }
                        __syncwarp();
                        pass(SUMS_TAKEN + of, 160);
                    }
                meet(SUMS_READY + of, 160); // once more for dk and dv, which are written by the same place
                pass(SUMS_TAKEN + of, 160);
            }
            if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        return;
    }
    OWNER_REGISTERS;

    u32 my_k = sk + wg * 64 * 128, my_v = sv + wg * 64 * 128, half_k = sk + (D == 128 ? wg * ROWS * 128 : wg * 64);
    u32 my_w = sw + wg * 64 * 128 + put_row() * 128, my_s = ss + wg * SUMS;
    float c2 = scale * LOG2E;
    for (int n, round = 0, base = 0; (n = take(items, round)) < work; round++) {
        int4 tile = tiles[n / kv_heads];
        int kv_head = n % kv_heads, start = tile.x, len = tile.y, row0 = tile.z;
        int per_head = (len - row0 + QUERIES - 1) / QUERIES, count = per_head * group;
        float gk[OUT], gv[OUT], s[32], dp[32], gq[COLUMNS / 2];
        u32 w[4][4], x[4][4];
    #pragma unroll
        for (int i = 0; i < OUT; i++) gk[i] = gv[i] = 0.0f;

        wait_full(own, round);
        for (int t = 0, at = 0; t < count; t++, at = at + 1 == per_head ? 0 : at + 1) { // `at` counts within a head
            int stage = (base + t) % QUERY_STAGES;
            u32 step_q = sq + stage * TILE, step_d = sd + stage * TILE, weights = (t & 1) * WEIGHTS;
            wait_full(ring, base + t);
            products_begin();
            scores(s, my_k, ROWS * 128, step_q, PANEL); // [keys, queries]
            products_commit();
            scores(dp, my_v, ROWS * 128, step_d, PANEL);
            products_commit();
            products_wait<1>();
            results(s);
            if (at <= wg) { // some of these queries come before some of this warpgroup's keys
                int before = (wg - at) * 64 + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    #pragma unroll
                for (int n = 0; n < 8; n++)
    #pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (n * 8 + (lane & 3) * 2 + (i & 1) < before + (i >> 1) * 8) s[n * 4 + i] = -INF;
            }
    #pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 z = *(const float2*)&stats[stage][0][n * 8 + (lane & 3) * 2];
    #pragma unroll
                for (int i = 0; i < 4; i++) s[n * 4 + i] = exp2_fast(fmaf(s[n * 4 + i], c2, -(i & 1 ? z.y : z.x)));
            }
            as_operand<4>(w, s);
            products_wait<0>();
            results(dp);
            products_begin();
            weighted<4>(gv, w, step_d, PANEL);
            products_commit();
    #pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 z = *(const float2*)&stats[stage][1][n * 8 + (lane & 3) * 2];
    #pragma unroll
                for (int i = 0; i < 4; i++) s[n * 4 + i] *= dp[n * 4 + i] - (i & 1 ? z.y : z.x);
            }
            as_operand<4>(x, s);
    #pragma unroll
            for (int k = 0; k < 4; k++) put16(my_w + weights, k * 2, x[k]);
            shared_ready();
            // Nobody writes here again before both have met once more, by when both have read this.
            meet(WEIGHTS_READY, WORKERS);
            products_begin();
            across(gq, sw + weights, half_k);
            products_commit();
            weighted<4>(gk, x, step_q, PANEL);
            products_commit();
            products_wait<1>();
            results(gq);
            meet(SUMS_TAKEN + wg, 160);
            int r = (threadIdx.x >> 5 & 3) * 16 + (lane >> 2), exchange = start + row0 + r & 3;
            u32 to = my_s + r * SUM_ROW + (lane & 3) * 8;
    #pragma unroll
            for (int n = 0; n < COLUMNS / 8; n++)
    #pragma unroll
                for (int h = 0; h < 2; h++)
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                                 ::"r"(to + h * 8 * SUM_ROW + (n / 4) * 128 + ((n & 3 ^ exchange) << 5)), "f"(gq[n * 4 + h * 2]), "f"(gq[n * 4 + h * 2 + 1])
                                 : "memory");
            shared_ready();
            pass(SUMS_READY + wg, 160);
            products_wait<0>();
            results(gk);
            results(gv);
            arrive(ring.empty + stage);
        }
        give_back(own, round);
        meet(SUMS_TAKEN + wg, 160);
        write_rows(dv + (long long)start * dv_stride + kv_head * D, dv_stride, gv, row0 + wg * 64, len, 1.0f, 1.0f, my_s, 64 * 128, WRITE + wg);
        meet(WRITE + wg, 128);
        write_rows(dk + (long long)start * dk_stride + kv_head * D, dk_stride, gk, row0 + wg * 64, len, scale, scale, my_s, 64 * 128, WRITE + wg);
        pass(SUMS_READY + wg, 160);
        base += count;
    }
}
