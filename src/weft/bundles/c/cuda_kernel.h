/* A tensor as the copy engine of a GPU sees it, contiguous axis first. */
typedef struct weft_map_of {
    int32_t buffer; /* position among the buffers of a launch */
    int32_t dtype, swizzle, rank;
    int64_t offset;
    uint64_t sizes[5], strides[5];
    uint32_t box[5], steps[5];
    int32_t lower[3], upper[3];
    int32_t image; /* whether windows go through it: its box is channels and places */
} weft_map_of;

/* A kernel of a GPU, and how it is launched. Its parameters are its maps, the addresses of its
   buffers, that of an error word and that of its workspace; or, where it works on several sets of
   buffers, one table of all their addresses. */
struct weft_kernel {
    const char *symbol;
    int64_t offset; /* of its cubin in the file of code */
    uint32_t grid[3], block[3];
    int32_t cluster;
    int32_t shared_bytes;
    const weft_map_of *maps;
    int32_t map_count;
    uint8_t reports, waits, together;
    int64_t workspace_bytes;
    int32_t sets;
};
