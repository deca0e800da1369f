// Attention of new tokens over caches of keys and values by the loop of attention's forward pass, bf16 in, f32 sums: many
// tokens of one sequence at a time, or one token by itself. Both give a token the bits that `attention_forward` gives it.

// Asks for the keys of a sequence's page `t`, or its values (`behind` = PAGE rows further); entries from `n` on become zero.
template <int THREADS>
__device__ __forceinline__ void load_page(u32 to, const u64* tables, int s, int t, int layer, int width, int kv_head, int behind, int n) {
    const bf16* page = keys_in(page_of(tables, s, t * PAGE), layer, width);
    load_rows<PAGE, THREADS>(to, page + behind * width + kv_head * D, width, n - t * PAGE);
}
static_assert(FWD_KEYS == PAGE, "a tile of keys is a page");

// A tile is {first row, rows (64·MT at most), position of the first, sequence}: tokens that follow each other and are stored already.
template <int MT>
__device__ __forceinline__ void
tiles_of_queries(const bf16* __restrict__ q, const u64* __restrict__ tables, const int* __restrict__ capacities, int sequences, int layer,
                 const int4* __restrict__ tiles, bf16* __restrict__ out, int heads, int kv_heads, long long q_stride, float scale) {
    extern __shared__ __align__(128) bf16 pieces[];
    int4 tile = tiles[blockIdx.x / heads];
    int head = blockIdx.x % heads, kv_head = head / (heads / kv_heads), rows = tile.y, s = tile.w, n = tile.z + rows;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, width = kv_heads * D;
    long long stride = (long long)heads * D;
    bf16* to = out + tile.x * stride + head * D;
    if ((u32)s >= (u32)sequences || tile.z < 0 || n > capacities[s]) {
        for (int i = threadIdx.x; i < rows * D; i += 128) to[i / D * stride + i % D] = to_bf16(NAN_);
        return;
    }
    u32 sq = smem_addr(pieces), sk = sq + 64 * MT * LD * 2, sv = sk + 2 * PAGE * LD * 2;
    load_rows<64 * MT, 128>(sq, q + tile.x * q_stride + head * D, q_stride, rows);
    auto load_k = [&](u32 to, int t) { load_page<128>(to, tables, s, t, layer, width, kv_head, 0, n); };
    auto load_v = [&](u32 to, int t) { load_page<128>(to, tables, s, t, layer, width, kv_head, PAGE, n); };
    int first = warp * 16 * MT, mine = tile.z + first;
    auto last = [&](int m, int h) { return mine + m * 16 + h * 8 + (lane >> 2); };
    float o[MT][NTILES][4], max_[MT][2], sum[MT][2];
    attend<MT>(o, max_, sum, sq + first * LD * 2 + lane_a(), sk, sv, (n + PAGE - 1) / PAGE, mine + 1, scale * LOG2E, load_k, load_v, last);
    store_rows<MT>(to, stride, o, first, rows, 1.0f);
}

#define CACHE_TILES(NAME, MT)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(128, 2)                                                                          \
    NAME(const bf16* __restrict__ q, const u64* __restrict__ tables, const int* __restrict__ capacities, int sequences,           \
         int layer, const int4* __restrict__ tiles, bf16* __restrict__ out, int heads, int kv_heads, long long q_stride,          \
         float scale) {                                                                                                           \
        tiles_of_queries<MT>(q, tables, capacities, sequences, layer, tiles, out, heads, kv_heads, q_stride, scale);              \
    }
CACHE_TILES(cache_tiles_64, 1)
CACHE_TILES(cache_tiles_128, 2)

// `cache_attention` by that loop: one block, of one warp, for a token and a key/value head, whose query heads are the rows.
extern "C" __global__ void __launch_bounds__(32)
cache_exact(const bf16* __restrict__ q, const u64* __restrict__ tables, const int* __restrict__ capacities,
            const int* __restrict__ seq, const int* __restrict__ position, int sequences, int layer, bf16* __restrict__ out,
            float* __restrict__, int heads, int kv_heads, int longest, long long q_stride, float scale) {
    extern __shared__ __align__(128) bf16 shared[];
    int row = blockIdx.x / kv_heads, kv_head = blockIdx.x % kv_heads, group = heads / kv_heads, width = kv_heads * D;
    int n = entries(capacities, seq, position, sequences, row, longest), s = seq[row];
    bf16* to = out + ((long long)row * heads + kv_head * group) * D;
    if (n == 0) {
        for (int i = threadIdx.x; i < group * D; i += 32) to[i] = to_bf16(NAN_);
        return;
    }
    u32 sq = smem_addr(shared), sk = sq + 16 * LD * 2, sv = sk + 2 * PAGE * LD * 2;
    load_rows<16, 32>(sq, q + row * q_stride + kv_head * group * D, D, group);
    auto load_k = [&](u32 to, int t) { load_page<32>(to, tables, s, t, layer, width, kv_head, 0, n); };
    auto load_v = [&](u32 to, int t) { load_page<32>(to, tables, s, t, layer, width, kv_head, PAGE, n); };
    auto last = [&](int, int) { return n - 1; };
    float o[1][NTILES][4], max_[1][2], sum[1][2];
    attend<1>(o, max_, sum, sq + lane_a(), sk, sv, (n + PAGE - 1) / PAGE, n, scale * LOG2E, load_k, load_v, last);
    store_rows<1>(to, D, o, 0, group, 1.0f);
}
