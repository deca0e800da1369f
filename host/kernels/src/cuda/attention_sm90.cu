// Causal attention of packed documents on Hopper's warpgroup products; needs sm_90a and warpgroup.cuh.
//
// Two warpgroups own 64 rows each; a third copies what both read into a ring of stages, so that each of the two goes on as
// soon as its own tile is there. In the forward pass they take turns at asking for products, so that one computes weights
// while the other's products run. The backward pass here is the one that repeats bit for bit: attention.cu's two kernels with
// the same arguments, but for tiles of 128 keys. Rows behind a document's end are other documents' or zero: no row of
// the document sees them as keys, and as queries their results are dropped.

#define STAGES 2 // of queries, of keys and of values in the forward pass

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_forward(const __grid_constant__ Map q, const __grid_constant__ Map k, const __grid_constant__ Map v,
                  bf16* __restrict__ out, float* __restrict__ lse, const int4* __restrict__ tiles, int work, int heads, int group,
                  int tokens, long long out_stride, float scale) {
    constexpr u32 TILE = ROWS * D * 2, PANEL = ROWS * 128;
    enum { TURN = 1, WRITE = 3 }; // barriers, one for each warpgroup
    int lane = threadIdx.x & 31, wg = warpgroup();
    u32 sq = smem_base(), sk = sq + STAGES * TILE, sv = sk + STAGES * TILE;
    __shared__ Ring<STAGES> queries, keys, values;
    ring_init(queries, 1, WORKERS / 32);
    ring_init(keys, 1, WORKERS / 32);
    ring_init(values, 1, WORKERS / 32);
    rings_made();
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        COPIER_REGISTERS;
        if (threadIdx.x > WORKERS) return;
        auto copy = [&](Ring<STAGES>& ring, int step, u32 to, const Map* from, int column, int row) {
            wait_empty(ring, step);
            const u64* full = ring.full + step % STAGES;
            arrive_expecting(full, TILE);
            copy_rows<ROWS>(to + step % STAGES * TILE, from, column, row, full);
        };
        for (int n = item(0), round = 0, step = 0; n < work; n = item(++round)) {
            int4 tile = tiles[n / heads];
            int head = n % heads, column = head / group * D, start = tile.x, row0 = tile.z, end = min(tile.y, row0 + ROWS);
            copy(queries, round, sq, &q, head * D, start + row0);
#pragma unroll 1
            for (int first = 0; first < end; first += ROWS, step++) {
                copy(keys, step, sk, &k, column, start + first);
                copy(values, step, sv, &v, column, start + first);
            }
        }
        return;
    }
    OWNER_REGISTERS;

    if (wg == 1) pass(TURN, WORKERS); // the first turn is warpgroup 0's
    for (int n = item(0), round = 0, base = 0; n < work; n = item(++round)) {
        int4 tile = tiles[n / heads];
        int head = n % heads, start = tile.x, len = tile.y, row0 = tile.z;
        int first_row = row0 + wg * 64, row = row0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
        int count = (min(len, row0 + ROWS) + ROWS - 1) / ROWS;
        float o[OUT], s[64], max_[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f}, old[2];
        u32 p[8][4], my_q = sq + round % STAGES * TILE + wg * 64 * 128;
        float c2 = scale * LOG2E;
    #pragma unroll
        for (int i = 0; i < OUT; i++) o[i] = 0.0f;

        // Turns scores of the keys from `first` on to weights, moves the maximum and leaves what earlier sums shrink by.
        auto softmax = [&](int first) {
            if (first + ROWS > first_row) {
    #pragma unroll
                for (int n = 0; n < 16; n++)
    #pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (first + n * 8 + (lane & 3) * 2 + (i & 1) > row + (i >> 1) * 8) s[n * 4 + i] = -INF;
            }
    #pragma unroll
            for (int h = 0; h < 2; h++) {
                float top = max_[h];
    #pragma unroll
                for (int n = 0; n < 16; n++) top = fmaxf(top, fmaxf(s[n * 4 + h * 2], s[n * 4 + h * 2 + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                float shift = top * c2, add = 0.0f;
                old[h] = exp2_fast(max_[h] * c2 - shift);
                max_[h] = top;
    #pragma unroll
                for (int n = 0; n < 16; n++)
    #pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float e = exp2_fast(fmaf(s[n * 4 + h * 2 + i], c2, -shift));
                        s[n * 4 + h * 2 + i] = e;
                        add += e;
                    }
                sum[h] = sum[h] * old[h] + add;
            }
        };

        wait_full(queries, round);
        wait_full(keys, base);
        products_begin();
        scores(s, my_q, PANEL, sk + base % STAGES * TILE, PANEL);
        products_commit();
        products_wait<0>();
        results(s);
        give_back(keys, base);
        softmax(0);
        as_operand<8>(p, s);

        for (int t = 1; t < count; t++) {
            wait_full(keys, base + t);
            meet(TURN + wg, WORKERS);
            products_begin();
            scores(s, my_q, PANEL, sk + (base + t) % STAGES * TILE, PANEL);
            products_commit();
            wait_full(values, base + t - 1);
            products_begin();
            weighted<8>(o, p, sv + (base + t - 1) % STAGES * TILE, PANEL);
            products_commit();
            pass(TURN + 1 - wg, WORKERS);
            products_wait<1>();
            results(s);
            give_back(keys, base + t);
            softmax(t * ROWS);
            products_wait<0>();
            results(o);
            give_back(values, base + t - 1);
    #pragma unroll
            for (int i = 0; i < OUT; i++) o[i] *= old[(i >> 1) & 1];
            as_operand<8>(p, s);
        }
        wait_full(values, base + count - 1);
        products_begin();
        weighted<8>(o, p, sv + (base + count - 1) % STAGES * TILE, PANEL);
        products_commit();
        float inv[2];
    #pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = sum[h];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            int r = row + h * 8;
            if ((lane & 3) == 0 && r < len) lse[(long long)head * tokens + start + r] = max_[h] * scale + logf(total);
            inv[h] = 1.0f / total;
        }
        products_wait<0>();
        results(o);
        give_back(values, base + count - 1);
        // The queries' place is free for the results by now, this warpgroup's half of it.
        bf16* to = out + (long long)start * out_stride + head * D;
        write_rows(to, out_stride, o, first_row, len, inv[0], inv[1], my_q, PANEL, WRITE + wg);
        shared_ready();
        give_back(queries, round);
        base += count;
    }
}

#define STEP 64 // queries (dk, dv) or keys (dq) taken at a time in the backward pass
#define STEP_STAGES 3
// dk and dv of 128 keys of one key/value head, over all query heads of its group and all later queries.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward_kv(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                      const bf16* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                      bf16* __restrict__ dk, bf16* __restrict__ dv, const int4* __restrict__ tiles, int work, int kv_heads,
                      int group, int tokens, long long q_stride, long long k_stride, long long v_stride, long long dout_stride,
                      long long dk_stride, long long dv_stride, float scale) {
    constexpr u32 TILE = STEP * D * 2, PANEL = STEP * 128;
    __shared__ float stats[STEP_STAGES][2][STEP]; // lse · log2 e and delta
    int lane = threadIdx.x & 31, wg = warpgroup();
    u32 sk = smem_base(), sv = sk + ROWS * D * 2, sq = sv + ROWS * D * 2, sd = sq + STEP_STAGES * TILE;
    __shared__ Ring<STEP_STAGES> ring;
    ring_init(ring, 2 * LOADERS, WORKERS); // copies and statistics, which every lane reads itself
    __shared__ u64 own; // keys and values
    own_init(&own);
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        LOADER_REGISTERS;
        int id = threadIdx.x - WORKERS, i = id % STEP;
        for (int n = item(0), round = 0, at = 0; n < work; n = item(++round)) {
            int4 tile = tiles[n / kv_heads];
            int kv_head = n % kv_heads, start = tile.x, len = tile.y, row0 = tile.z;
            own_wait(&own, round);
            load_rows<ROWS>(sk, k + (long long)(start + row0) * k_stride + kv_head * D, k_stride, len - row0);
            load_rows<ROWS>(sv, v + (long long)(start + row0) * v_stride + kv_head * D, v_stride, len - row0);
            for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
                for (int first = row0; first < len; first += STEP, at++) {
                    int stage = at % STEP_STAGES, r = first + i;
                    long long row = start + first;
                    wait_empty(ring, at);
                    load_rows<STEP>(sq + stage * TILE, q + row * q_stride + head * D, q_stride, len - first);
                    load_rows<STEP>(sd + stage * TILE, dout + row * dout_stride + head * D, dout_stride, len - first);
                    arrive_copied(ring, at);
                    long long stat = (long long)head * tokens + start + r;
                    if (id < STEP) stats[stage][0][i] = r < len ? lse[stat] * LOG2E : INF;
                    else stats[stage][1][i] = r < len ? delta[stat] : 0.0f;
                    arrive(ring.full + stage);
                }
        }
        copies_done();
        return;
    }
    WORKER_REGISTERS;

    for (int n = item(0), round = 0, base = 0; n < work; n = item(++round)) {
        int4 tile = tiles[n / kv_heads];
        int kv_head = n % kv_heads, start = tile.x, len = tile.y, row0 = tile.z, row = row0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
        int per_head = (len - row0 + STEP - 1) / STEP, count = per_head * group;
        float gk[OUT], gv[OUT], s[32], dp[32];
        u32 w[4][4], x[4][4];
    #pragma unroll
        for (int i = 0; i < OUT; i++) gk[i] = gv[i] = 0.0f;
        float c2 = scale * LOG2E;
        u32 my_k = sk + wg * 64 * 128, my_v = sv + wg * 64 * 128;

        for (int t = 0; t < count; t++) {
            int step = t % per_head, first = row0 + step * STEP;
            wait_copied(ring, base + t);
            if (step < wg) { // these queries come before all of this warpgroup's keys
                arrive(ring.empty + (base + t) % STEP_STAGES);
                continue;
            }
            int stage = (base + t) % STEP_STAGES;
            u32 my_q = sq + stage * TILE, my_d = sd + stage * TILE;
            products_begin();
            scores(s, my_k, ROWS * 128, my_q, PANEL); // [keys, queries]
            products_commit();
            scores(dp, my_v, ROWS * 128, my_d, PANEL);
            products_commit();
            products_wait<1>();
            results(s);
    #pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 z = *(const float2*)&stats[stage][0][n * 8 + (lane & 3) * 2];
    #pragma unroll
                for (int i = 0; i < 4; i++) {
                    float e = exp2_fast(fmaf(s[n * 4 + i], c2, -(i & 1 ? z.y : z.x)));
                    bool before = step == wg && first + n * 8 + (lane & 3) * 2 + (i & 1) < row + (i >> 1) * 8;
                    s[n * 4 + i] = before ? 0.0f : e;
                }
            }
            as_operand<4>(w, s);
            products_wait<0>();
            results(dp);
            products_begin();
            weighted<4>(gv, w, my_d, PANEL);
            products_commit();
    #pragma unroll
            for (int n = 0; n < 8; n++) {
                float2 z = *(const float2*)&stats[stage][1][n * 8 + (lane & 3) * 2];
    #pragma unroll
                for (int i = 0; i < 4; i++) s[n * 4 + i] *= dp[n * 4 + i] - (i & 1 ? z.y : z.x);
            }
            as_operand<4>(x, s);
            products_begin();
            weighted<4>(gk, x, my_q, PANEL);
            products_commit();
            products_wait<0>();
            results(gk);
            results(gv);
            arrive(ring.empty + (base + t) % STEP_STAGES);
        }
        own_done(&own);
        store_rows(dk + (long long)start * dk_stride + kv_head * D, dk_stride, gk, row, len, scale, scale);
        store_rows(dv + (long long)start * dv_stride + kv_head * D, dv_stride, gv, row, len, 1.0f, 1.0f);
        base += count;
    }
}

// dq of 128 queries of one head, over all keys that they see.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward_q(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                     const bf16* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                     bf16* __restrict__ dq, const int4* __restrict__ tiles, int work, int heads, int group, int tokens,
                     long long q_stride, long long k_stride, long long v_stride, long long dout_stride,
                     long long dq_stride, float scale) {
    constexpr u32 TILE = STEP * D * 2, PANEL = STEP * 128;
    int lane = threadIdx.x & 31, wg = warpgroup();
    u32 sq = smem_base(), sd = sq + ROWS * D * 2, sk = sd + ROWS * D * 2, sv = sk + STEP_STAGES * TILE;
    __shared__ Ring<STEP_STAGES> ring;
    ring_init(ring, LOADERS, WORKERS / 32);
    __shared__ u64 own; // queries and their gradients
    own_init(&own);
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        LOADER_REGISTERS;
        for (int n = item(0), round = 0, at = 0; n < work; n = item(++round)) {
            int4 tile = tiles[n / heads];
            int head = n % heads, kv_head = head / group, start = tile.x, len = tile.y, row0 = tile.z;
            const bf16* from_k = k + (long long)start * k_stride + kv_head * D;
            const bf16* from_v = v + (long long)start * v_stride + kv_head * D;
            own_wait(&own, round);
            load_rows<ROWS>(sq, q + (long long)(start + row0) * q_stride + head * D, q_stride, len - row0);
            load_rows<ROWS>(sd, dout + (long long)(start + row0) * dout_stride + head * D, dout_stride, len - row0);
            for (int first = 0; first < min(len, row0 + ROWS); first += STEP, at++) {
                u32 stage = at % STEP_STAGES * TILE;
                wait_empty(ring, at);
                load_rows<STEP>(sk + stage, from_k + (long long)first * k_stride, k_stride, len - first);
                load_rows<STEP>(sv + stage, from_v + (long long)first * v_stride, v_stride, len - first);
                arrive_copied(ring, at);
            }
        }
        copies_done();
        return;
    }
    WORKER_REGISTERS;

    for (int n = item(0), round = 0, base = 0; n < work; n = item(++round)) {
        int4 tile = tiles[n / heads];
        int head = n % heads, start = tile.x, len = tile.y, row0 = tile.z, row = row0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
        int count = (min(len, row0 + ROWS) + STEP - 1) / STEP;
        float z[2], dl[2];
    #pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row + h * 8;
            z[h] = r < len ? lse[(long long)head * tokens + start + r] * LOG2E : INF;
            dl[h] = r < len ? delta[(long long)head * tokens + start + r] : 0.0f;
        }
        float g[OUT], s[32], dp[32];
        u32 w[4][4];
    #pragma unroll
        for (int i = 0; i < OUT; i++) g[i] = 0.0f;
        float c2 = scale * LOG2E;
        int first_row = row0 + wg * 64;
        u32 my_q = sq + wg * 64 * 128, my_d = sd + wg * 64 * 128;

        for (int t = 0; t < count; t++) {
            int first = t * STEP;
            wait_copied(ring, base + t);
            if (first > first_row) { // no row of this warpgroup sees these keys
                give_back(ring, base + t);
                continue;
            }
            u32 stage = (base + t) % STEP_STAGES * TILE;
            products_begin();
            scores(s, my_q, ROWS * 128, sk + stage, PANEL);
            products_commit();
            scores(dp, my_d, ROWS * 128, sv + stage, PANEL);
            products_commit();
            products_wait<1>();
            results(s);
    #pragma unroll
            for (int n = 0; n < 8; n++)
    #pragma unroll
                for (int i = 0; i < 4; i++) {
                    float e = exp2_fast(fmaf(s[n * 4 + i], c2, -z[i >> 1]));
                    bool after = first == first_row && first + n * 8 + (lane & 3) * 2 + (i & 1) > row + (i >> 1) * 8;
                    s[n * 4 + i] = after ? 0.0f : e;
                }
            products_wait<0>();
            results(dp);
    #pragma unroll
            for (int i = 0; i < 32; i++) s[i] *= dp[i] - dl[(i >> 1) & 1];
            as_operand<4>(w, s);
            products_begin();
            weighted<4>(g, w, sk + stage, PANEL);
            products_commit();
            products_wait<0>();
            results(g);
            give_back(ring, base + t);
        }
        own_done(&own);
        store_rows(dq + (long long)start * dq_stride + head * D, dq_stride, g, row, len, scale, scale);
        base += count;
    }
}
