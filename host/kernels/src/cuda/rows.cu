// RMSNorm, head norm with rotation, SwiGLU, biases and embeddings, forward and backward. Rows of `real`, f32 arithmetic and weights.
// Formulas are those of the CPU path (rows.rs). Weight gradients take two passes: each block sums the rows it owns in
// order, then `sum_columns` adds the blocks in order, so results repeat bit for bit.

// ITEMS: units of 8 elements of a row that one thread holds; a row has at most 512 · 8 · ITEMS elements.

// h = x + add (if given; written to sum), y = h · rstd · w, rstd = 1 / sqrt(mean(h²) + eps). One block per row.
template <int ITEMS> __device__ __forceinline__ void
norm_rows(const real* __restrict__ x, const real* __restrict__ add, const float* __restrict__ w,
                                    real* __restrict__ sum, real* __restrict__ y, float* __restrict__ rstd, int hidden, float eps) {
    __shared__ float scratch[33];
    long long base = (long long)blockIdx.x * hidden;
    int units = hidden / 8;
    float h[ITEMS][8], square = 0.0f;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int u = threadIdx.x + j * blockDim.x;
        if (u < units) {
            load8(x + base + u * 8, h[j]);
            if (add) {
                float a[8];
                load8(add + base + u * 8, a);
#pragma unroll
                for (int i = 0; i < 8; i++) h[j][i] += a[i];
                Eight rounded = pack8(h[j]);
                put8(sum + base + u * 8, rounded);
                unpack8(rounded, h[j]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) square = fmaf(h[j][i], h[j][i], square);
        }
    }
    float r = 1.0f / sqrtf(block_sum(square, scratch) / hidden + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = r;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int u = threadIdx.x + j * blockDim.x;
        if (u < units) {
            float4 a = *(const float4*)(w + u * 8), b = *(const float4*)(w + u * 8 + 4);
            float ws[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, out[8];
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = h[j][i] * r * ws[i];
            store8(y + base + u * 8, out);
        }
    }
}

// dx = through (if given) + rstd · (dy · w − h · rstd² · mean(dy · w · h)); partial[block] = Σ rows dy · h · rstd. Writes
// the forward pass's y again where asked for.
template <int ITEMS> __device__ __forceinline__ void
norm_rows_backward(const real* __restrict__ h, const float* __restrict__ rstd, const float* __restrict__ w,
                                             const real* __restrict__ dy, const real* __restrict__ through, real* __restrict__ dx,
                                             real* __restrict__ y, float* __restrict__ partial, int rows, int hidden) {
    __shared__ float scratch[33];
    int units = hidden / 8;
    float ws[ITEMS][8], dw[ITEMS][8];
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int u = threadIdx.x + j * blockDim.x;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            ws[j][i] = u < units ? w[u * 8 + i] : 0.0f;
            dw[j][i] = 0.0f;
        }
    }
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        long long base = (long long)row * hidden;
        float x[ITEMS][8], g[ITEMS][8], r = rstd[row], dot = 0.0f;
        Eight skip[ITEMS];
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            int u = threadIdx.x + j * blockDim.x;
            if (u < units) {
                load8(h + base + u * 8, x[j]);
                load8(dy + base + u * 8, g[j]);
                if (through) skip[j] = get8(through + base + u * 8);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    dw[j][i] = fmaf(g[j][i], x[j][i] * r, dw[j][i]);
                    g[j][i] *= ws[j][i];
                    dot = fmaf(g[j][i], x[j][i], dot);
                }
            }
        }
        float c = block_sum(dot, scratch) * r * r / hidden;
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            int u = threadIdx.x + j * blockDim.x;
            if (u < units) {
                float t[8] = {0, 0, 0, 0, 0, 0, 0, 0};
                if (through) unpack8(skip[j], t);
#pragma unroll
                for (int i = 0; i < 8; i++) t[i] += r * fmaf(-c, x[j][i], g[j][i]);
                store8(dx + base + u * 8, t);
                if (y) {
#pragma unroll
                    for (int i = 0; i < 8; i++) t[i] = x[j][i] * r * ws[j][i];
                    store8(y + base + u * 8, t);
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        int u = threadIdx.x + j * blockDim.x;
        if (u < units) {
            float* p = partial + (long long)blockIdx.x * hidden + u * 8;
            *(float4*)p = make_float4(dw[j][0], dw[j][1], dw[j][2], dw[j][3]);
            *(float4*)(p + 4) = make_float4(dw[j][4], dw[j][5], dw[j][6], dw[j][7]);
        }
    }
}

#define NORM(NAME, ITEMS) \
    extern "C" __global__ void __launch_bounds__(512) rms_norm_##NAME(const real* x, const real* add, const float* w, real* sum, real* y, \
                                                                     float* rstd, int hidden, float eps) { \
        norm_rows<ITEMS>(x, add, w, sum, y, rstd, hidden, eps); \
    } \
    extern "C" __global__ void __launch_bounds__(512) rms_norm_backward_##NAME( \
        const real* h, const float* rstd, const float* w, const real* dy, const real* through, real* dx, real* y, float* partial, int rows, \
        int hidden) { \
        norm_rows_backward<ITEMS>(h, rstd, w, dy, through, dx, y, partial, rows, hidden); \
    }
NORM(narrow, 1)
NORM(wide, 2)

// out[c] += Σ rows x[row · ld + c]. A block of 32 × 16 threads owns 32 columns.
extern "C" __global__ void __launch_bounds__(512)
sum_columns(const float* __restrict__ x, float* __restrict__ out, int rows, int ld, int columns) {
    __shared__ float part[16][33];
    int c = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (c < columns)
        for (int r = threadIdx.y; r < rows; r += 16) sum += x[(long long)r * ld + c];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < columns) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++) total += part[i][threadIdx.x];
        out[c] += total;
    }
}

// cos and sin of position · inv_freq, times factor, [positions, half].
extern "C" __global__ void rope_table(const float* __restrict__ inv_freq, float* __restrict__ cos, float* __restrict__ sin, int positions,
                                      int half, float factor) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= positions * half) return;
    float s, c;
    sincosf((float)(i / half) * inv_freq[i % half], &s, &c);
    cos[i] = c * factor;
    sin[i] = s * factor;
}

// Eight lanes hold a head: lane l < dim / 16 of them has elements 8l .. 8l + 7 of each half. A warp holds four heads.
struct Head { float a[8], b[8]; };
#define HEADS 4
__device__ __forceinline__ Head head_load(const real* p, int dim, int lane, bool on) {
    Eight a = {}, b = {};
    if (on) { a = get8(p + lane * 8); b = get8(p + dim / 2 + lane * 8); }
    Head h;
    unpack8(a, h.a);
    unpack8(b, h.b);
    return h;
}
__device__ __forceinline__ void head_store(real* p, int dim, int lane, bool on, const Head& h) {
    if (on) { store8(p + lane * 8, h.a); store8(p + dim / 2 + lane * 8, h.b); }
}
__device__ __forceinline__ void floats8(const float* p, float* x, bool on, float other) {
    float4 a = make_float4(other, other, other, other), b = a;
    if (on) { a = ((const float4*)p)[0]; b = ((const float4*)p)[1]; }
    x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w;
    x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
}
__device__ __forceinline__ float head_sum(float x) {
#pragma unroll
    for (int i = 4; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ __forceinline__ float head_rstd(const Head& h, int dim, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) sum = fmaf(h.a[j], h.a[j], fmaf(h.b[j], h.b[j], sum));
    return 1.0f / sqrtf(head_sum(sum) / dim + eps);
}
// This lane's cosines and sines of a position; NaN outside the table's `limit` positions, 0 in lanes without elements.
__device__ __forceinline__ Head angle(const float* cos, const float* sin, int position, int limit, int dim, int lane, bool on) {
    bool known = (u32)position < (u32)limit;
    long long at = (long long)position * (dim / 2) + lane * 8;
    Head h;
    floats8(cos + at, h.a, on && known, known ? 0.0f : NAN_);
    floats8(sin + at, h.b, on && known, known ? 0.0f : NAN_);
    return h;
}

// Head norm (where weights are given) and rotation (a, b) → (a cos − b sin, b cos + a sin) of the q and k heads of rows
// [q | k | v]. One warp per token and HEADS heads.
extern "C" __global__ void __launch_bounds__(256)
rope(const real* __restrict__ qkv, const float* __restrict__ wq, const float* __restrict__ wk, const float* __restrict__ cos,
     const float* __restrict__ sin, const int* __restrict__ positions, real* __restrict__ q, real* __restrict__ k, int tokens, int heads,
     int kv_heads, int dim, int limit, float eps) {
    int lane = threadIdx.x & 7, all = heads + kv_heads, parts = (all + HEADS - 1) / HEADS;
    int i = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (i >= tokens * parts) return;
    int t = i / parts, head = i % parts * HEADS + ((threadIdx.x >> 3) & 3);
    bool is_q = head < heads, on = lane < dim / 16 && head < all;
    Head x = head_load(qkv + ((long long)t * (all + kv_heads) + head) * dim, dim, lane, on);
    Head r = angle(cos, sin, positions[t], limit, dim, lane, on);
    if (wq) {
        float scale = head_rstd(x, dim, eps);
        const float* w = (is_q ? wq : wk) + lane * 8;
        float wa[8], wb[8];
        floats8(w, wa, on, 0.0f);
        floats8(w + dim / 2, wb, on, 0.0f);
#pragma unroll
        for (int j = 0; j < 8; j++) { x.a[j] *= scale * wa[j]; x.b[j] *= scale * wb[j]; }
    }
    Head y;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        y.a[j] = x.a[j] * r.a[j] - x.b[j] * r.b[j];
        y.b[j] = x.b[j] * r.a[j] + x.a[j] * r.b[j];
    }
    real* to = is_q ? q + ((long long)t * heads + head) * dim : k + ((long long)t * kv_heads + head - heads) * dim;
    head_store(to, dim, lane, on, y);
}

// Gradient of `rope` into the q and k parts of dqkv; partial[block][2 · dim] holds those of the two norm weights.
extern "C" __global__ void __launch_bounds__(256)
rope_backward(const real* __restrict__ qkv, const float* __restrict__ wq, const float* __restrict__ wk, const float* __restrict__ cos,
              const float* __restrict__ sin, const int* __restrict__ positions, const real* __restrict__ dq, const real* __restrict__ dk,
              real* __restrict__ dqkv, float* __restrict__ partial, int tokens, int heads, int kv_heads, int dim, int limit, float eps) {
    __shared__ float sums[32][257];
    int lane = threadIdx.x & 7, slot = threadIdx.x >> 3, all = heads + kv_heads, parts = (all + HEADS - 1) / HEADS;
    Head dwq = {}, dwk = {};
    for (int i = blockIdx.x * 8 + (threadIdx.x >> 5); i < tokens * parts; i += gridDim.x * 8) {
        int t = i / parts, head = i % parts * HEADS + (slot & 3);
        bool is_q = head < heads, on = lane < dim / 16 && head < all;
        long long row = ((long long)t * (all + kv_heads) + head) * dim;
        const real* from = is_q ? dq + ((long long)t * heads + head) * dim : dk + ((long long)t * kv_heads + head - heads) * dim;
        Head d = head_load(from, dim, lane, on), x = head_load(qkv + row, dim, lane, on && wq);
        Head r = angle(cos, sin, positions[t], limit, dim, lane, on);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float a = d.a[j], b = d.b[j];
            d.a[j] = a * r.a[j] + b * r.b[j];
            d.b[j] = b * r.a[j] - a * r.b[j];
        }
        if (wq) {
            const float* w = (is_q ? wq : wk) + lane * 8;
            float scale = head_rstd(x, dim, eps), dot = 0.0f, wa[8], wb[8];
            floats8(w, wa, on, 0.0f);
            floats8(w + dim / 2, wb, on, 0.0f);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float ga = d.a[j] * (x.a[j] * scale), gb = d.b[j] * (x.b[j] * scale);
                if (is_q) { dwq.a[j] += ga; dwq.b[j] += gb; } else { dwk.a[j] += ga; dwk.b[j] += gb; }
                d.a[j] *= wa[j];
                d.b[j] *= wb[j];
                dot = fmaf(d.a[j], x.a[j], fmaf(d.b[j], x.b[j], dot));
            }
            float m = head_sum(dot) * scale * scale / dim;
#pragma unroll
            for (int j = 0; j < 8; j++) { d.a[j] = scale * (d.a[j] - m * x.a[j]); d.b[j] = scale * (d.b[j] - m * x.b[j]); }
        }
        head_store(dqkv + row, dim, lane, on, d);
    }
    if (!partial) return;
    if (lane < dim / 16)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            sums[slot][lane * 8 + j] = dwq.a[j];
            sums[slot][dim / 2 + lane * 8 + j] = dwq.b[j];
            sums[slot][dim + lane * 8 + j] = dwk.a[j];
            sums[slot][dim + dim / 2 + lane * 8 + j] = dwk.b[j];
        }
    __syncthreads();
    if (threadIdx.x < 2 * dim) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; i++) total += sums[i][threadIdx.x];
        partial[(long long)blockIdx.x * 2 * dim + threadIdx.x] = total;
    }
}


// h = silu(gate) · up of rows [gate | up]. One thread per 8 elements of h.
extern "C" __global__ void __launch_bounds__(256)
swiglu(const real* __restrict__ gate_up, real* __restrict__ h, long long units, int width) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= units) return;
    int per_row = width / 8;
    long long row = i / per_row, at = row * 2 * width + (i % per_row) * 8;
    float g[8], u[8];
    load8(gate_up + at, g);
    load8(gate_up + at + width, u);
#pragma unroll
    for (int j = 0; j < 8; j++) g[j] = g[j] * sigmoid(g[j]) * u[j];
    store8(h + i * 8, g);
}

// Gradient towards [gate | up]; writes h again where asked for, so that it need not be kept.
extern "C" __global__ void __launch_bounds__(256)
swiglu_backward(const real* __restrict__ gate_up, const real* __restrict__ dh, real* __restrict__ d_gate_up, real* __restrict__ h,
                long long units, int width) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= units) return;
    int per_row = width / 8;
    long long row = i / per_row, at = row * 2 * width + (i % per_row) * 8;
    float g[8], u[8], d[8], out[8];
    load8(gate_up + at, g);
    load8(gate_up + at + width, u);
    load8(dh + i * 8, d);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float s = sigmoid(g[j]), silu = g[j] * s, up = u[j];
        out[j] = silu * up;
        u[j] = d[j] * silu;
        g[j] = d[j] * up * fmaf(silu, 1.0f - s, s);
    }
    store8(d_gate_up + at, g);
    store8(d_gate_up + at + width, u);
    if (h) store8(h + i * 8, out);
}

// x[t] = table[ids[t]]; NaN where the id is outside the table.
extern "C" __global__ void __launch_bounds__(256)
embed(const real* __restrict__ table, const int* __restrict__ ids, real* __restrict__ x, long long units, int hidden, int vocab) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= units) return;
    int per_row = hidden / 8, id = ids[i / per_row];
    float bad[8] = {NAN_, NAN_, NAN_, NAN_, NAN_, NAN_, NAN_, NAN_};
    put8(x + i * 8, (u32)id < (u32)vocab ? get8(table + (long long)id * hidden + (i % per_row) * 8) : pack8(bad));
}

// to[ids[i]] = from[i]; ids outside the table are left out.
extern "C" __global__ void __launch_bounds__(256)
scatter_rows(const real* __restrict__ from, const int* __restrict__ ids, real* __restrict__ to, long long units, int hidden, int rows) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= units) return;
    int per_row = hidden / 8, id = ids[i / per_row];
    if ((u32)id < (u32)rows) put8(to + (long long)id * hidden + (i % per_row) * 8, get8(from + i * 8));
}

// x[r] += bias.
extern "C" __global__ void __launch_bounds__(256)
add_bias(real* __restrict__ x, const float* __restrict__ bias, long long units, int width) {
    long long i = (long long)blockIdx.x * 256 + threadIdx.x;
    if (i >= units) return;
    const float* b = bias + i % (width / 8) * 8;
    float v[8];
    load8(x + i * 8, v);
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] += b[j];
    store8(x + i * 8, v);
}

// partial[block] = Σ of the rows that the block owns. Block (b, s): 1024 columns from 1024 s of rows b, b + gridDim.x, …
extern "C" __global__ void __launch_bounds__(128)
row_sums(const real* __restrict__ x, float* __restrict__ partial, int rows, int width) {
    int c = (blockIdx.y * 128 + threadIdx.x) * 8;
    if (c >= width) return;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll 4
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        float v[8];
        load8(x + (long long)r * width + c, v);
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += v[j];
    }
    float4* p = (float4*)(partial + (long long)blockIdx.x * width + c);
    p[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    p[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
}

// grad[id] += Σ dx over the tokens with that id, in order. Block (c, s): 256 columns from 256 c of segment s, whose
// tokens are order[starts[s] .. starts[s + 1]].
extern "C" __global__ void __launch_bounds__(128)
embed_backward(const real* __restrict__ dx, const int* __restrict__ order, const int* __restrict__ starts, const int* __restrict__ ids,
               float* __restrict__ grad, int hidden) {
    int c = blockIdx.y * 256 + threadIdx.x * 2;
    if (c >= hidden) return;
    float a = 0.0f, b = 0.0f;
    int end = starts[blockIdx.x + 1];
#pragma unroll 4
    for (int i = starts[blockIdx.x]; i < end; i++) {
        float2 v = load2(dx + (long long)order[i] * hidden + c);
        a += v.x;
        b += v.y;
    }
    float2* p = (float2*)(grad + (long long)ids[blockIdx.x] * hidden + c);
    float2 old = *p;
    *p = make_float2(old.x + a, old.y + b);
}

// Attention's delta = Σ dout · out over a head, [heads, tokens]. One warp per head and token.
extern "C" __global__ void __launch_bounds__(256)
attention_delta(const real* __restrict__ out, const real* __restrict__ dout, float* __restrict__ delta, int heads, int tokens,
                int dim, long long out_stride, long long dout_stride) {
    long long i = (long long)blockIdx.x * 8 + (threadIdx.x >> 5);
    if (i >= (long long)heads * tokens) return;
    long long t = i / heads;
    int head = i % heads, lane = threadIdx.x & 31;
    out += t * out_stride + head * dim;
    dout += t * dout_stride + head * dim;
    float sum = 0.0f;
    for (int c = lane * 2; c < dim; c += 64) {
        float2 a = load2(out + c), b = load2(dout + c);
        sum += a.x * b.x + a.y * b.y;
    }
    sum = warp_sum(sum);
    if (lane == 0) delta[(long long)head * tokens + t] = sum;
}
