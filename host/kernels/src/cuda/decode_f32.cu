// Attention of new tokens over caches of keys and values in f32 throughout.
//
// A block takes one chunk of one row's context for all query heads of a key/value head. A thread owns every 128th
// key, then one column of the values.

extern "C" __global__ void __launch_bounds__(128)
cache_attention(const float* __restrict__ q, const u64* __restrict__ tables, const int* __restrict__ capacities,
                const int* __restrict__ seq, const int* __restrict__ position, int sequences, int layer, float* __restrict__ out,
                float* __restrict__ scratch, int heads, int kv_heads, int longest, long long q_stride, float scale) {
    extern __shared__ __align__(16) float shared[];
    __shared__ float tops[MOST_GROUP], sums[MOST_GROUP];
    int row = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads, group = heads / kv_heads, chunk = blockIdx.y;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = entries(capacities, seq, position, sequences, row, longest);
    float* to = out + ((long long)row * heads + kv_head * group) * D;
    if (n == 0 && chunk == 0)
        for (int i = threadIdx.x; i < group * D; i += 128) to[i] = NAN_;
    if (chunk * CHUNK >= n) return;
    int valid = min(n - chunk * CHUNK, CHUNK), width = kv_heads * D;
    auto keys = [&](int i) {
        return keys_in(page_of(tables, seq[row], chunk * CHUNK + i), layer, width) + i % PAGE * width + kv_head * D;
    };
    float *sq = shared, *sp = sq + MOST_GROUP * D;
    for (int i = threadIdx.x; i < group * D; i += 128) sq[i] = q[row * q_stride + kv_head * group * D + i];
    __syncthreads();

    float x[MOST_GROUP];
    for (int key = threadIdx.x; key < valid; key += 128) {
#pragma unroll
        for (int g = 0; g < MOST_GROUP; g++) x[g] = 0.0f;
        const float4* mine = (const float4*)keys(key);
#pragma unroll 4
        for (int c = 0; c < D / 4; c++) {
            float4 b = mine[c];
#pragma unroll
            for (int g = 0; g < MOST_GROUP; g++)
                if (g < group) {
                    float4 a = *(const float4*)(sq + g * D + c * 4);
                    x[g] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, x[g]))));
                }
        }
#pragma unroll
        for (int g = 0; g < MOST_GROUP; g++)
            if (g < group) sp[g * CHUNK + key] = x[g] * scale;
    }
    __syncthreads();
    for (int g = warp; g < group; g += 4) {
        float* s = sp + g * CHUNK;
        float top = -INF, sum = 0.0f;
        for (int i = lane; i < valid; i += 32) top = fmaxf(top, s[i]);
        top = warp_max(top);
        for (int i = lane; i < valid; i += 32) {
            float e = expf(s[i] - top);
            s[i] = e;
            sum += e;
        }
        sum = warp_sum(sum);
        if (lane == 0) { tops[g] = top; sums[g] = sum; }
    }
    __syncthreads();

    int c = threadIdx.x;
    if (c >= D) return;
#pragma unroll
    for (int g = 0; g < MOST_GROUP; g++) x[g] = 0.0f;
#pragma unroll 8
    for (int i = 0; i < valid; i++) {
        float b = keys(i)[PAGE * width + c];
#pragma unroll
        for (int g = 0; g < MOST_GROUP; g++)
            if (g < group) x[g] = fmaf(sp[g * CHUNK + i], b, x[g]);
    }
#pragma unroll
    for (int g = 0; g < MOST_GROUP; g++)
        if (g < group) {
            if (n <= CHUNK) {
                to[g * D + c] = x[g] / sums[g];
            } else {
                float* p = part(scratch, row, kv_head * group + g, heads, chunk, gridDim.y);
                p[c] = x[g];
                if (c == 0) { p[D] = tops[g]; p[D + 1] = sums[g]; }
            }
        }
}
