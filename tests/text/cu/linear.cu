extern "C" __global__ void __launch_bounds__(256, 1)
linear(const __grid_constant__ TensorMap m0, const __grid_constant__ TensorMap m1, const __grid_constant__ TensorMap m2, char* b0, char* b1, char* b2, char* b3) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  const u32 shared = (u32)__cvta_generic_to_shared(shared_bytes);
  if (shared & 1023) __trap();
  const int thread = threadIdx.x;
  const int lane = thread & 31;
  const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0);
  const int block = blockIdx.x;
  if ((thread == 0)) {
    mbarrier_init(shared + 213248, 1);
    mbarrier_init(shared + 213256, 1);
    mbarrier_init(shared + 213264, 1);
    mbarrier_init(shared + 213272, 1);
    mbarrier_init(shared + 213280, 1);
    mbarrier_init(shared + 213288, 1);
    mbarrier_init(shared + 213296, 1);
    mbarrier_init(shared + 213304, 1);
    mbarrier_init(shared + 213312, 1);
    mbarrier_init(shared + 213320, 1);
    mbarrier_init(shared + 213328, 1);
    mbarrier_init(shared + 213336, 1);
    mbarrier_init(shared + 213344, 4);
    mbarrier_init(shared + 213352, 4);
    mbarrier_init(shared + 213360, 4);
    mbarrier_init(shared + 213368, 4);
    mbarrier_init(shared + 213376, 4);
    mbarrier_init(shared + 213384, 4);
    mbarrier_init(shared + 213392, 4);
    mbarrier_init(shared + 213400, 4);
    mbarrier_init(shared + 213408, 4);
    mbarrier_init(shared + 213416, 4);
    mbarrier_init(shared + 213424, 4);
    mbarrier_init(shared + 213432, 4);
    mbarrier_init_fence();
    prefetch_map(m0);
    prefetch_map(m1);
    prefetch_map(m2);
  }
  __syncthreads();
  if (warp < 4) {
    if ((thread == 0)) {
      int slot = 0;
      int phase = 0;
      #pragma unroll 1
      for (int tile = block; tile < 8; tile += 8) {
        int place = tile;
        int first = (place / 2);
        int tile_m = first;
        int tile_n = (place % 2);
        #pragma unroll 1
        for (int k = 0; k < 3; k += 1) {
          mbarrier_wait(shared + ((slot * 8) + 213344), (phase ^ 1));
          mbarrier_expect_tx(shared + ((slot * 8) + 213248), 16384);
          tma_load(shared + (slot * 8192), m0, shared + ((slot * 8) + 213248), (k * 64), (tile_m * 64));
          tma_load(shared + ((slot * 8192) + 98304), m1, shared + ((slot * 8) + 213248), (tile_n * 64), (k * 64));
          slot = (slot + 1);
          if ((slot == 12)) {
            slot = 0;
            phase = (phase ^ 1);
          }
        }
      }
    }
  }
  else {
    int group = ((warp - 4) >> 2);
    int member = (thread & 127);
    int quarter = (warp & 3);
    int slot = 0;
    int phase = 0;
    int last_slot = 0;
    float acc0[32];
    u32 out0[16];
    int buffer = 0;
    #pragma unroll 1
    for (int tile = block; tile < 8; tile += 8) {
      int place = tile;
      int first = (place / 2);
      int tile_m = first;
      int tile_n = (place % 2);
      float column0_0 = ((((tile_n * 64) + member) < 128)) ? widen_bf16(fetch((const u16*)b2 + (i64)((tile_n * 64) + member), true)) : (0x0.0p+0f);
      mbarrier_wait(shared + ((slot * 8) + 213248), phase);
      u64 a_tile0 = descriptor(shared + (slot * 8192), 0x4000004000010000ull);
      u64 b_tile0 = descriptor(shared + ((slot * 8192) + 98304), 0x4000004002000000ull);
      wgmma_fence();
      wgmma_bf16_bf16_n64_k_mn<0>(acc0, a_tile0 + 0, b_tile0 + 0);
      wgmma_bf16_bf16_n64_k_mn<1>(acc0, a_tile0 + 2, b_tile0 + 128);
      wgmma_bf16_bf16_n64_k_mn<1>(acc0, a_tile0 + 4, b_tile0 + 256);
      wgmma_bf16_bf16_n64_k_mn<1>(acc0, a_tile0 + 6, b_tile0 + 384);
      wgmma_commit();
      last_slot = slot;
      slot = (slot + 1);
      if ((slot == 12)) {
        slot = 0;
        phase = (phase ^ 1);
      }
      #pragma unroll 1
      for (int k = 1; k < 3; k += 1) {
        mbarrier_wait(shared + ((slot * 8) + 213248), phase);
        u64 a_tile = descriptor(shared + (slot * 8192), 0x4000004000010000ull);
        u64 b_tile = descriptor(shared + ((slot * 8192) + 98304), 0x4000004002000000ull);
        wgmma_fence();
        wgmma_bf16_bf16_n64_k_mn<1>(acc0, a_tile + 0, b_tile + 0);
        wgmma_bf16_bf16_n64_k_mn<1>(acc0, a_tile + 2, b_tile + 128);
        wgmma_bf16_bf16_n64_k_mn<1>(acc0, a_tile + 4, b_tile + 256);
        wgmma_bf16_bf16_n64_k_mn<1>(acc0, a_tile + 6, b_tile + 384);
        wgmma_commit();
        wgmma_wait<1>();
        if ((lane == 0)) {
          mbarrier_arrive(shared + ((last_slot * 8) + 213344));
        }
        last_slot = slot;
        slot = (slot + 1);
        if ((slot == 12)) {
          slot = 0;
          phase = (phase ^ 1);
        }
      }
      wgmma_wait<0>();
      hold(acc0);
      if ((lane == 0)) {
        mbarrier_arrive(shared + ((last_slot * 8) + 213344));
      }
      if ((member < 64)) {
        store_shared(shared + (((group * 256) + (member * 4)) + 212992), bits((float)column0_0));
      }
      named_barrier((group + 1), 128);
      {
        const int row_ = (((tile_m * 64) + (quarter * 16)) + (lane >> 2));
        const int column_ = ((tile_n * 64) + ((lane & 3) * 2));
        #pragma unroll
        for (int g_ = 0; g_ < 8; ++g_) {
          float v2_c0_, v2_c1_;
          load_shared_pair(v2_c0_, v2_c1_, shared + (((group * 256) + (((lane & 3) * 2) * 4)) + 212992) + g_ * 32);
          float y0_, y1_, y2_, y3_;
          {
            const float v0 = acc0[0 + g_ * 4 + 0];
            const float v2 = v2_c0_;
            float v1 = round_bf16((float)v0);
            float v3 = round_bf16(v1 + v2);
            float v4 = (0x0.0p+0f);
            float v5 = max_nan(v3, v4);
            y0_ = v5;
          }
          {
            const float v0 = acc0[0 + g_ * 4 + 1];
            const float v2 = v2_c1_;
            float v1 = round_bf16((float)v0);
            float v3 = round_bf16(v1 + v2);
            float v4 = (0x0.0p+0f);
            float v5 = max_nan(v3, v4);
            y1_ = v5;
          }
          {
            const float v0 = acc0[0 + g_ * 4 + 2];
            const float v2 = v2_c0_;
            float v1 = round_bf16((float)v0);
            float v3 = round_bf16(v1 + v2);
            float v4 = (0x0.0p+0f);
            float v5 = max_nan(v3, v4);
            y2_ = v5;
          }
          {
            const float v0 = acc0[0 + g_ * 4 + 3];
            const float v2 = v2_c1_;
            float v1 = round_bf16((float)v0);
            float v3 = round_bf16(v1 + v2);
            float v4 = (0x0.0p+0f);
            float v5 = max_nan(v3, v4);
            y3_ = v5;
          }
          out0[0 + g_ * 2 + 0] = pack_bf16(y0_, y1_);
          out0[0 + g_ * 2 + 1] = pack_bf16(y2_, y3_);
        }
      }
      if ((member == 0)) {
        tma_wait_read<1>();
      }
      named_barrier((group + 1), 128);
      stmatrix_x4(shared + (((((group * 2) + buffer) * 8192) + ((((quarter * 16) + (lane & 15)) * 128) + ((((lane >> 4) * 8) * 2) ^ ((((((quarter * 16) + (lane & 15)) * 128) >> 7) & 7) << 4)))) + 196608), out0[0], out0[1], out0[2], out0[3]);
      stmatrix_x4(shared + (((((group * 2) + buffer) * 8192) + ((((quarter * 16) + (lane & 15)) * 128) + (((((lane >> 4) * 8) + 16) * 2) ^ ((((((quarter * 16) + (lane & 15)) * 128) >> 7) & 7) << 4)))) + 196608), out0[4], out0[5], out0[6], out0[7]);
      stmatrix_x4(shared + (((((group * 2) + buffer) * 8192) + ((((quarter * 16) + (lane & 15)) * 128) + (((((lane >> 4) * 8) + 32) * 2) ^ ((((((quarter * 16) + (lane & 15)) * 128) >> 7) & 7) << 4)))) + 196608), out0[8], out0[9], out0[10], out0[11]);
      stmatrix_x4(shared + (((((group * 2) + buffer) * 8192) + ((((quarter * 16) + (lane & 15)) * 128) + (((((lane >> 4) * 8) + 48) * 2) ^ ((((((quarter * 16) + (lane & 15)) * 128) >> 7) & 7) << 4)))) + 196608), out0[12], out0[13], out0[14], out0[15]);
      proxy_fence();
      named_barrier((group + 1), 128);
      if ((member == 0)) {
        tma_store(shared + ((((group * 2) + buffer) * 8192) + 196608), m2, (tile_n * 64), (tile_m * 64));
        tma_commit();
      }
      buffer = (buffer + 1);
      if ((buffer == 2)) {
        buffer = 0;
      }
    }
    if ((member == 0)) {
      tma_wait_read<0>();
    }
  }
}
