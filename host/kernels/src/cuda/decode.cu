// Attention of new tokens over caches of keys and values on tensor cores, bf16 in, f32 sums.
//
// A block takes one chunk of one row's context for all query heads of a key/value head, so that keys and values are read
// once; query heads are the 16 rows of the products. Each of its four warps walks over every fourth tile of 16 entries with
// a softmax of its own and stages of its own, so that no warp waits for another before the end, where the four are put
// together.

#define TILE 16
#define WARPS 4
#define STAGES 2
#define STAGE_ROWS (2 * TILE) // keys, then values
static_assert(WARPS * TILE == PAGE && CHUNK == 8 * PAGE, "a page is a tile of each warp, and a lane's number counts the pages of a chunk");

// Asks for the keys and values of one tile; entries from `valid` on become zero. For one warp.
__device__ __forceinline__ void load_tile(u32 to, const bf16* k, const bf16* v, int width, int valid) {
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++) {
        int c = i * 32 + (threadIdx.x & 31), row = c / CHUNKS, col = c % CHUNKS * 8;
        long long from = row < valid ? row * (long long)width + col : 0;
        copy16(to + (row * LD + col) * 2, k + from, row < valid);
        copy16(to + ((TILE + row) * LD + col) * 2, v + from, row < valid);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 3)
cache_attention(const bf16* __restrict__ q, const u64* __restrict__ tables, const int* __restrict__ capacities,
                const int* __restrict__ seq, const int* __restrict__ position, int sequences, int layer, bf16* __restrict__ out,
                float* __restrict__ scratch, int heads, int kv_heads, int longest, long long q_stride, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    __shared__ float tops[WARPS][16], sums[WARPS][16];
    int row = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads, group = heads / kv_heads, chunk = blockIdx.y;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = entries(capacities, seq, position, sequences, row, longest);
    bf16* to = out + ((long long)row * heads + kv_head * group) * D;
    if (n == 0 && chunk == 0)
        for (int i = threadIdx.x; i < group * D; i += 32 * WARPS) to[i] = to_bf16(NAN_);
    if (chunk * CHUNK >= n) return;
    int valid = min(n - chunk * CHUNK, CHUNK), tiles = (valid + TILE - 1) / TILE, width = kv_heads * D;
    // A lane knows one of the chunk's pages; the warps' tiles of one step are those of one page.
    u64 page = (lane & 7) * PAGE < valid ? page_of(tables, seq[row], chunk * CHUNK + (lane & 7) * PAGE) : 0;
    u32 sq = smem_addr(shared), mine = sq + (16 + warp * STAGES * STAGE_ROWS) * LD * 2;
    // Tile `t` goes to its stage; one group of copies is counted for each step, also past the end.
    auto load = [&](int t) {
        u32 stage = mine + t / WARPS % STAGES * STAGE_ROWS * LD * 2;
        u64 from = __shfl_sync(0xffffffffu, page, t / WARPS & 7);
        const bf16* k = keys_in(from, layer, width) + t % WARPS * TILE * width + kv_head * D;
        if (t < tiles) load_tile(stage, k, k + PAGE * width, width, valid - t * TILE);
        copy_commit();
    };
    load_rows<16, 32 * WARPS>(sq, q + row * q_stride + kv_head * group * D, D, group);
    copy_commit();
#pragma unroll
    for (int i = 0; i < STAGES; i++) load(warp + i * WARPS);
    copy_wait<STAGES>();
    __syncthreads();

    // A lane has rows lane / 4 and 8 more, two columns of each 8.
    float o[1][NTILES][4], max_[2] = {-INF, -INF}, sum[2] = {0.0f, 0.0f}, c2 = scale * LOG2E;
    clear<1, NTILES>(o);
    for (int t = warp; t < tiles; t += WARPS) {
        copy_wait<STAGES - 1>();
        __syncwarp();
        u32 stage = mine + t / WARPS % STAGES * STAGE_ROWS * LD * 2;
        float s[1][2][4];
        clear<1, 2>(s);
        scores<1, 2>(s, sq + lane_a(), stage + lane_b());
        if ((t + 1) * TILE > valid)
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (t * TILE + j * 8 + (lane & 3) * 2 + (i & 1) >= valid) s[0][j][i] = -INF;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = fmaxf(max_[h], fmaxf(fmaxf(s[0][0][h * 2], s[0][0][h * 2 + 1]), fmaxf(s[0][1][h * 2], s[0][1][h * 2 + 1])));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            float old = exp2_fast((max_[h] - top) * c2);
            max_[h] = top;
            sum[h] *= old;
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float e = exp2_fast((s[0][j][h * 2 + i] - top) * c2);
                    s[0][j][h * 2 + i] = e;
                    sum[h] += e;
                }
#pragma unroll
            for (int j = 0; j < NTILES; j++) { o[0][j][h * 2] *= old; o[0][j][h * 2 + 1] *= old; }
        }
        u32 w[1][1][4];
        as_operand(w[0][0], s[0][0], s[0][1]);
        weighted<1, 1>(o, w, stage + TILE * LD * 2 + lane_a());
        __syncwarp();
        load(t + STAGES * WARPS);
    }
    copy_wait<0>();
    __syncthreads(); // nothing but the warps' results is needed any more: they take the stages' place

    float* parts = (float*)shared; // [warp][16][LD]
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = (lane >> 2) + h * 8;
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
        sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
        if ((lane & 3) == 0) { tops[warp][r] = max_[h]; sums[warp][r] = sum[h]; }
        if (r < group)
#pragma unroll
            for (int j = 0; j < NTILES; j++)
                *(float2*)(parts + (warp * 16 + r) * LD + j * 8 + (lane & 3) * 2) = make_float2(o[0][j][h * 2], o[0][j][h * 2 + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * (D / 2); i += 32 * WARPS) {
        int r = i / (D / 2), c = i % (D / 2) * 2;
        float top = fmaxf(fmaxf(tops[0][r], tops[1][r]), fmaxf(tops[2][r], tops[3][r])), all = 0.0f, a = 0.0f, b = 0.0f;
#pragma unroll
        for (int j = 0; j < WARPS; j++) {
            float w = exp2_fast((tops[j][r] - top) * c2);
            float2 x = *(const float2*)(parts + (j * 16 + r) * LD + c);
            all = fmaf(w, sums[j][r], all);
            a = fmaf(w, x.x, a);
            b = fmaf(w, x.y, b);
        }
        if (n <= CHUNK) {
            *(u32*)(to + r * D + c) = pack_bf16(a / all, b / all);
        } else {
            float* p = part(scratch, row, kv_head * group + r, heads, chunk, gridDim.y);
            *(float2*)(p + c) = make_float2(a, b);
            if (c == 0) *(float2*)(p + D) = make_float2(top * scale, all);
        }
    }
}
