// Causal attention of packed documents, forward and backward, on tensor cores (mma.sync m16n8k16, bf16 in, f32 sums).
//
// D (head dimension) is defined at compile time: a multiple of 16, at most 128. Query heads h read key/value head h / GROUP.
// A tile names rows of one document: {first token of the document, its length, first row of the tile, unused}.
// The softmax's gradient follows Dao, "FlashAttention-2" (2023); nothing is summed with atomics, so results repeat bit for bit:
// one kernel owns rows of keys, another owns rows of queries.

#define FWD_ROWS 128

// out = softmax(q · kᵀ · scale) · v and lse = ln Σ exp(q · k · scale), [heads, tokens].
extern "C" __global__ void __launch_bounds__(128, 2)
attention_forward(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v, bf16* __restrict__ out,
                  float* __restrict__ lse, const int4* __restrict__ tiles, int work, int heads, int group, int tokens,
                  long long q_stride, long long k_stride, long long v_stride, long long out_stride, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    if (blockIdx.x >= work) return;
    int4 tile = tiles[blockIdx.x / heads];
    int head = blockIdx.x % heads, kv_head = head / group;
    int start = tile.x, len = tile.y, row0 = tile.z;
    q += (long long)(start + row0) * q_stride + head * D;
    k += (long long)start * k_stride + kv_head * D;
    v += (long long)start * v_stride + kv_head * D;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;

    u32 sq = smem_addr(shared), sk = sq + FWD_ROWS * LD * 2, sv = sk + 2 * FWD_KEYS * LD * 2;
    load_rows<FWD_ROWS, 128>(sq, q, q_stride, len - row0);
    auto load_k = [&](u32 to, int t) {
        int first = t * FWD_KEYS;
        load_rows<FWD_KEYS, 128>(to, k + (long long)first * k_stride, k_stride, len - first);
    };
    auto load_v = [&](u32 to, int t) {
        int first = t * FWD_KEYS;
        load_rows<FWD_KEYS, 128>(to, v + (long long)first * v_stride, v_stride, len - first);
    };
    int mine = row0 + warp * 32, count = (min(len, row0 + FWD_ROWS) + FWD_KEYS - 1) / FWD_KEYS;
    auto row = [&](int m, int h) { return mine + m * 16 + h * 8 + (lane >> 2); };
    float o[2][NTILES][4], max_[2][2], sum[2][2];
    attend<2>(o, max_, sum, sq + warp * 32 * LD * 2 + lane_a(), sk, sv, count, mine + 1, scale * LOG2E, load_k, load_v, row);

#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row(m, h);
            if ((lane & 3) == 0 && r < len) lse[(long long)head * tokens + start + r] = max_[m][h] * scale + logf(sum[m][h]);
        }
    store_rows<2>(out + (long long)start * out_stride + head * D, out_stride, o, mine, len, 1.0f);
}

#define KV_ROWS 64
#define KV_QUERIES 64

// dk and dv of 64 keys of one key/value head, over all query heads of its group and all later queries.
extern "C" __global__ void __launch_bounds__(128, 2)
attention_backward_kv(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                      const bf16* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                      bf16* __restrict__ dk, bf16* __restrict__ dv, const int4* __restrict__ tiles, int work, int kv_heads, int group,
                      int tokens, long long q_stride, long long k_stride, long long v_stride, long long dout_stride,
                      long long dk_stride, long long dv_stride, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    if (blockIdx.x >= work) return;
    int4 tile = tiles[blockIdx.x / kv_heads];
    int kv_head = blockIdx.x % kv_heads, start = tile.x, len = tile.y, row0 = tile.z;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    k += (long long)(start + row0) * k_stride + kv_head * D;
    v += (long long)(start + row0) * v_stride + kv_head * D;
    q += (long long)start * q_stride + kv_head * group * D;
    dout += (long long)start * dout_stride + kv_head * group * D;
    lse += (long long)kv_head * group * tokens + start;
    delta += (long long)kv_head * group * tokens + start;

    constexpr u32 STAGE = KV_QUERIES * LD * 2;
    u32 sk = smem_addr(shared), sv = sk + KV_ROWS * LD * 2, sq = sv + KV_ROWS * LD * 2, sd = sq + 2 * STAGE;
    float* stats = (float*)(shared + (2 * KV_ROWS + 4 * KV_QUERIES) * LD); // [stage][lse · log2 e | delta][64]
    int per_head = (len - row0 + KV_QUERIES - 1) / KV_QUERIES, count = per_head * group;

    auto load = [&](int t) {
        int stage = t & 1, h = t / per_head, first = row0 + (t % per_head) * KV_QUERIES;
        load_rows<KV_QUERIES, 128>(sq + stage * STAGE, q + (long long)first * q_stride + h * D, q_stride, len - first);
        load_rows<KV_QUERIES, 128>(sd + stage * STAGE, dout + (long long)first * dout_stride + h * D, dout_stride, len - first);
        int i = threadIdx.x & 63, r = first + i;
        float* to = stats + stage * 128;
        if (threadIdx.x < 64) to[i] = r < len ? lse[(long long)h * tokens + r] * LOG2E : INF;
        else to[64 + i] = r < len ? delta[(long long)h * tokens + r] : 0.0f;
    };
    load_rows<KV_ROWS, 128>(sk, k, k_stride, len - row0);
    load_rows<KV_ROWS, 128>(sv, v, v_stride, len - row0);
    load(0);
    copy_commit();

    float gk[1][NTILES][4], gv[1][NTILES][4];
    clear<1, NTILES>(gk);
    clear<1, NTILES>(gv);
    float c2 = scale * LOG2E;
    u32 my_k = sk + warp * 16 * LD * 2 + lane_a(), my_v = sv + warp * 16 * LD * 2 + lane_a();

    for (int t = 0; t < count; t++) {
        copy_wait<0>();
        __syncthreads();
        if (t + 1 < count) load(t + 1);
        copy_commit();
        u32 stage = (t & 1) * STAGE;
        const float* st = stats + (t & 1) * 128 + (lane & 3) * 2;

        float s[1][8][4];
        clear<1, 8>(s);
        scores<1, 8>(s, my_k, sq + stage + lane_b()); // [keys, queries]
        bool diagonal = t % per_head == 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 z = *(const float2*)(st + n * 8);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float p = exp2_fast(fmaf(s[0][n][i], c2, -(i & 1 ? z.y : z.x)));
                bool before = diagonal && n * 8 + (lane & 3) * 2 + (i & 1) < warp * 16 + (lane >> 2) + (i >> 1) * 8;
                s[0][n][i] = before ? 0.0f : p;
            }
        }
        u32 w[1][4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) as_operand(w[0][j], s[0][2 * j], s[0][2 * j + 1]);
        weighted<1, 4>(gv, w, sd + stage + lane_a());

        float dp[1][8][4];
        clear<1, 8>(dp);
        scores<1, 8>(dp, my_v, sd + stage + lane_b());
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 z = *(const float2*)(st + 64 + n * 8);
#pragma unroll
            for (int i = 0; i < 4; i++) s[0][n][i] *= dp[0][n][i] - (i & 1 ? z.y : z.x);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) as_operand(w[0][j], s[0][2 * j], s[0][2 * j + 1]);
        weighted<1, 4>(gk, w, sq + stage + lane_a());
    }
    dk += (long long)start * dk_stride + kv_head * D;
    dv += (long long)start * dv_stride + kv_head * D;
    store_rows<1>(dk, dk_stride, gk, row0 + warp * 16, len, scale);
    store_rows<1>(dv, dv_stride, gv, row0 + warp * 16, len, 1.0f);
}

#define Q_ROWS 128
#define Q_KEYS 32

// dq of 128 queries of one head, over all keys that they see.
extern "C" __global__ void __launch_bounds__(128, 2)
attention_backward_q(const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
                     const bf16* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                     bf16* __restrict__ dq, const int4* __restrict__ tiles, int work, int heads, int group, int tokens,
                     long long q_stride, long long k_stride, long long v_stride, long long dout_stride,
                     long long dq_stride, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    if (blockIdx.x >= work) return;
    int4 tile = tiles[blockIdx.x / heads];
    int head = blockIdx.x % heads, kv_head = head / group, start = tile.x, len = tile.y, row0 = tile.z;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    q += (long long)(start + row0) * q_stride + head * D;
    dout += (long long)(start + row0) * dout_stride + head * D;
    k += (long long)start * k_stride + kv_head * D;
    v += (long long)start * v_stride + kv_head * D;

    constexpr u32 STAGE = Q_KEYS * LD * 2;
    u32 sq = smem_addr(shared), sd = sq + Q_ROWS * LD * 2, sk = sd + Q_ROWS * LD * 2, sv = sk + 2 * STAGE;
    int count = (min(len, row0 + Q_ROWS) + Q_KEYS - 1) / Q_KEYS;
    auto load = [&](int t) {
        u32 stage = (t & 1) * STAGE;
        int first = t * Q_KEYS;
        load_rows<Q_KEYS, 128>(sk + stage, k + (long long)first * k_stride, k_stride, len - first);
        load_rows<Q_KEYS, 128>(sv + stage, v + (long long)first * v_stride, v_stride, len - first);
    };
    load_rows<Q_ROWS, 128>(sq, q, q_stride, len - row0);
    load_rows<Q_ROWS, 128>(sd, dout, dout_stride, len - row0);
    load(0);
    copy_commit();

    float z[2][2], dl[2][2];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = row0 + warp * 32 + m * 16 + h * 8 + (lane >> 2);
            z[m][h] = r < len ? lse[(long long)head * tokens + start + r] * LOG2E : INF;
            dl[m][h] = r < len ? delta[(long long)head * tokens + start + r] : 0.0f;
        }
    float g[2][NTILES][4];
    clear<2, NTILES>(g);
    float c2 = scale * LOG2E;
    u32 my_q = sq + warp * 32 * LD * 2 + lane_a(), my_d = sd + warp * 32 * LD * 2 + lane_a();

    for (int t = 0; t < count; t++) {
        copy_wait<0>();
        __syncthreads();
        if (t + 1 < count) load(t + 1);
        copy_commit();
        u32 stage = (t & 1) * STAGE;
        int first = t * Q_KEYS, row = row0 + warp * 32 + (lane >> 2);
        if (first > row0 + warp * 32 + 31) continue; // no row of this warp sees these keys
        bool masked = first + Q_KEYS > row0 + warp * 32;
        float s[2][4][4], dp[2][4][4];
        clear<2, 4>(s);
        clear<2, 4>(dp);
        scores<2, 4>(s, my_q, sk + stage + lane_b());
        scores<2, 4>(dp, my_d, sv + stage + lane_b());
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float p = exp2_fast(fmaf(s[m][n][i], c2, -z[m][i >> 1]));
                    if (masked && first + n * 8 + (lane & 3) * 2 + (i & 1) > row + m * 16 + (i >> 1) * 8) p = 0.0f;
                    s[m][n][i] = p * (dp[m][n][i] - dl[m][i >> 1]);
                }
        u32 w[2][2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int j = 0; j < 2; j++) as_operand(w[m][j], s[m][2 * j], s[m][2 * j + 1]);
        weighted<2, 2>(g, w, sk + stage + lane_a());
    }
    dq += (long long)start * dq_stride + head * D;
    store_rows<2>(dq, dq_stride, g, row0 + warp * 32, len, scale);
}
