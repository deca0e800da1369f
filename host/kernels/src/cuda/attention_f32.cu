// Causal attention of packed documents in f32 throughout, forward and backward: the functions of attention.cu with the same
// arguments, for comparisons. Nothing is rounded to less than f32.
//
// D (head dimension) is defined at compile time: a multiple of 16, at most 128. Four blocks share a tile of 128 rows (of
// queries, or of keys for dk and dv), 32 rows each: block y takes rows from 32 y on. Sums have a fixed order.

#define ROWS 32
#define THREADS 256
#define LD (D + 4) // row of shared memory: rows one after the other start 4 banks (or 20) apart
#define UNITS ((D / 4 + 15) / 16) // pieces of 4 columns that one thread owns

// Threads stand in 16 × 16: thread (y, x) owns rows y and y + 16, columns x and x + 16 of a 32 × 32 piece, and columns
// 4 (x + 16 u) of rows of D.
#define X (threadIdx.x & 15)
#define Y (threadIdx.x >> 4)

// 32 rows of D elements; rows from `valid` on become zero.
__device__ __forceinline__ void load_rows(float* to, const float* from, long long stride, int valid) {
    for (int i = threadIdx.x; i < ROWS * (D / 4); i += THREADS) {
        int row = i / (D / 4), c = i % (D / 4) * 4;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < valid) v = *(const float4*)(from + row * stride + c);
        *(float4*)(to + row * LD + c) = v;
    }
}
// s[i][j] = row y + 16 i of a · row x + 16 j of b.
__device__ __forceinline__ void scores(float (*s)[2], const float* a, const float* b) {
    s[0][0] = s[0][1] = s[1][0] = s[1][1] = 0.0f;
#pragma unroll 4
    for (int c = 0; c < D; c += 4) {
        float4 p[2], q[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            p[i] = *(const float4*)(a + (Y + 16 * i) * LD + c);
            q[i] = *(const float4*)(b + (X + 16 * i) * LD + c);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                s[i][j] = fmaf(p[i].x, q[j].x, fmaf(p[i].y, q[j].y, fmaf(p[i].z, q[j].z, fmaf(p[i].w, q[j].w, s[i][j]))));
    }
}
// o[i] += Σ w[y + 16 i][k] · row k of b, over 32 rows.
__device__ __forceinline__ void weighted(float (*o)[UNITS][4], const float* w, const float* b) {
#pragma unroll 4
    for (int k = 0; k < ROWS; k++) {
        float p[2] = {w[Y * (ROWS + 1) + k], w[(Y + 16) * (ROWS + 1) + k]};
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int c = (X + 16 * u) * 4;
            if (c < D) {
                float4 v = *(const float4*)(b + k * LD + c);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    o[i][u][0] = fmaf(p[i], v.x, o[i][u][0]);
                    o[i][u][1] = fmaf(p[i], v.y, o[i][u][1]);
                    o[i][u][2] = fmaf(p[i], v.z, o[i][u][2]);
                    o[i][u][3] = fmaf(p[i], v.w, o[i][u][3]);
                }
            }
        }
    }
}
__device__ __forceinline__ void store_rows(float* to, long long stride, float (*o)[UNITS][4], int valid, float low, float high) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = Y + 16 * i;
        float factor = i ? high : low;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int c = (X + 16 * u) * 4;
            if (row < valid && c < D)
                *(float4*)(to + row * stride + c) =
                    make_float4(o[i][u][0] * factor, o[i][u][1] * factor, o[i][u][2] * factor, o[i][u][3] * factor);
        }
    }
}
__device__ __forceinline__ void put(float* to, int i, int j, float x) { to[(Y + 16 * i) * (ROWS + 1) + X + 16 * j] = x; }
// Largest and sum of a row, known to the sixteen threads that own it.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int i = 8; i > 0; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int i = 8; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_forward(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out,
                  float* __restrict__ lse, const int4* __restrict__ tiles, int work, int heads, int group, int tokens,
                  long long q_stride, long long k_stride, long long v_stride, long long out_stride, float scale) {
    extern __shared__ __align__(16) float shared[];
    if (blockIdx.x >= work) return;
    int4 tile = tiles[blockIdx.x / heads];
    int head = blockIdx.x % heads, kv_head = head / group, start = tile.x, len = tile.y, row0 = tile.z + blockIdx.y * ROWS;
    if (row0 >= len) return;
    float *sq = shared, *sk = sq + ROWS * LD, *sv = sk + ROWS * LD, *sp = sv + ROWS * LD;
    k += (long long)start * k_stride + kv_head * D;
    v += (long long)start * v_stride + kv_head * D;
    load_rows(sq, q + (long long)(start + row0) * q_stride + head * D, q_stride, len - row0);

    float o[2][UNITS][4] = {}, max_[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f};
    for (int first = 0; first < min(len, row0 + ROWS); first += ROWS) {
        __syncthreads();
        load_rows(sk, k + (long long)first * k_stride, k_stride, len - first);
        load_rows(sv, v + (long long)first * v_stride, v_stride, len - first);
        __syncthreads();
        float s[2][2];
        scores(s, sq, sk);
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) s[i][j] = first + (int)X + 16 * j > row0 + (int)Y + 16 * i ? -INF : s[i][j] * scale;
            float top = fmaxf(max_[i], row_max(fmaxf(s[i][0], s[i][1]))), old = expf(max_[i] - top), e[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                e[j] = expf(s[i][j] - top);
                put(sp, i, j, e[j]);
            }
            sum[i] = sum[i] * old + row_sum(e[0] + e[1]);
            max_[i] = top;
#pragma unroll
            for (int u = 0; u < UNITS; u++)
#pragma unroll
                for (int c = 0; c < 4; c++) o[i][u][c] *= old;
        }
        __syncthreads();
        weighted(o, sp, sv);
    }
    store_rows(out + (long long)(start + row0) * out_stride + head * D, out_stride, o, len - row0, 1.0f / sum[0], 1.0f / sum[1]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = row0 + Y + 16 * i;
        if (X == 0 && row < len) lse[(long long)head * tokens + start + row] = max_[i] + logf(sum[i]);
    }
}

// dk and dv of 32 keys of one key/value head, over all query heads of its group and all later queries.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_kv(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                      const float* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                      float* __restrict__ dk, float* __restrict__ dv, const int4* __restrict__ tiles, int work, int kv_heads,
                      int group, int tokens, long long q_stride, long long k_stride, long long v_stride, long long dout_stride,
                      long long dk_stride, long long dv_stride, float scale) {
    extern __shared__ __align__(16) float shared[];
    if (blockIdx.x >= work) return;
    int4 tile = tiles[blockIdx.x / kv_heads];
    int kv_head = blockIdx.x % kv_heads, start = tile.x, len = tile.y, row0 = tile.z + blockIdx.y * ROWS;
    if (row0 >= len) return;
    float *sk = shared, *sv = sk + ROWS * LD, *sq = sv + ROWS * LD, *sd = sq + ROWS * LD;
    float *sp = sd + ROWS * LD, *ss = sp + ROWS * (ROWS + 1), *stats = ss + ROWS * (ROWS + 1); // lse, delta
    load_rows(sk, k + (long long)(start + row0) * k_stride + kv_head * D, k_stride, len - row0);
    load_rows(sv, v + (long long)(start + row0) * v_stride + kv_head * D, v_stride, len - row0);

    float gk[2][UNITS][4] = {}, gv[2][UNITS][4] = {};
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int first = row0; first < len; first += ROWS) {
            long long row = start + first, stat = (long long)head * tokens + row;
            __syncthreads();
            load_rows(sq, q + row * q_stride + head * D, q_stride, len - first);
            load_rows(sd, dout + row * dout_stride + head * D, dout_stride, len - first);
            if (threadIdx.x < 2 * ROWS) {
                int i = threadIdx.x % ROWS;
                float outside = threadIdx.x < ROWS ? INF : 0.0f;
                stats[threadIdx.x] = first + i < len ? (threadIdx.x < ROWS ? lse : delta)[stat + i] : outside;
            }
            __syncthreads();
            float s[2][2], dp[2][2]; // [key, query]
            scores(s, sk, sq);
            scores(dp, sv, sd);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int query = X + 16 * j;
                    bool before = first + query < row0 + (int)Y + 16 * i;
                    float p = before ? 0.0f : expf(s[i][j] * scale - stats[query]);
                    put(sp, i, j, p);
                    put(ss, i, j, p * (dp[i][j] - stats[ROWS + query]));
                }
            __syncthreads();
            weighted(gv, sp, sd);
            weighted(gk, ss, sq);
        }
    store_rows(dk + (long long)(start + row0) * dk_stride + kv_head * D, dk_stride, gk, len - row0, scale, scale);
    store_rows(dv + (long long)(start + row0) * dv_stride + kv_head * D, dv_stride, gv, len - row0, 1.0f, 1.0f);
}

// dq of 32 queries of one head, over all keys that they see.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_q(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                     const float* __restrict__ dout, const float* __restrict__ lse, const float* __restrict__ delta,
                     float* __restrict__ dq, const int4* __restrict__ tiles, int work, int heads, int group, int tokens,
                     long long q_stride, long long k_stride, long long v_stride, long long dout_stride, long long dq_stride,
                     float scale) {
    extern __shared__ __align__(16) float shared[];
    if (blockIdx.x >= work) return;
    int4 tile = tiles[blockIdx.x / heads];
    int head = blockIdx.x % heads, kv_head = head / group, start = tile.x, len = tile.y, row0 = tile.z + blockIdx.y * ROWS;
    if (row0 >= len) return;
    float *sq = shared, *sd = sq + ROWS * LD, *sk = sd + ROWS * LD, *sv = sk + ROWS * LD, *ss = sv + ROWS * LD;
    load_rows(sq, q + (long long)(start + row0) * q_stride + head * D, q_stride, len - row0);
    load_rows(sd, dout + (long long)(start + row0) * dout_stride + head * D, dout_stride, len - row0);
    k += (long long)start * k_stride + kv_head * D;
    v += (long long)start * v_stride + kv_head * D;
    float z[2], dl[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = row0 + Y + 16 * i;
        long long stat = (long long)head * tokens + start + row;
        z[i] = row < len ? lse[stat] : INF;
        dl[i] = row < len ? delta[stat] : 0.0f;
    }

    float g[2][UNITS][4] = {};
    for (int first = 0; first < min(len, row0 + ROWS); first += ROWS) {
        __syncthreads();
        load_rows(sk, k + (long long)first * k_stride, k_stride, len - first);
        load_rows(sv, v + (long long)first * v_stride, v_stride, len - first);
        __syncthreads();
        float s[2][2], dp[2][2];
        scores(s, sq, sk);
        scores(dp, sd, sv);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                bool after = first + (int)X + 16 * j > row0 + (int)Y + 16 * i;
                float p = after ? 0.0f : expf(s[i][j] * scale - z[i]);
                put(ss, i, j, p * (dp[i][j] - dl[i]));
            }
        __syncthreads();
        weighted(g, ss, sk);
    }
    store_rows(dq + (long long)(start + row0) * dq_stride + head * D, dq_stride, g, len - row0, scale, scale);
}
