// C entry points, for ctypes, to SGLang's n-gram corpus, in place of ngram_corpus_ffi.cpp, which needs tvm-ffi.
#include "ngram.h"

#include <cstring>

using sglang::ngram::Ngram;
using sglang::ngram::Param;

extern "C" {

void * corpus_new(int64_t capacity, int64_t depth, int64_t least_breadth, int64_t most_breadth, int64_t nodes,
                  int64_t frequency, int64_t sam_budget, int64_t corpus_tokens) {
    Param param;
    param.enable = true;
    param.enable_router_mode = false;
    param.max_trie_depth = depth;
    param.min_bfs_breadth = least_breadth;
    param.max_bfs_breadth = most_breadth;
    param.draft_token_num = nodes;
    param.match_type = frequency ? "PROB" : "BFS";
    param.external_sam_budget = sam_budget;
    param.external_corpus_max_tokens = corpus_tokens;
    return new Ngram(capacity, param);
}

void corpus_free(void * corpus) { delete (Ngram *) corpus; }

void corpus_insert(void * corpus, const int32_t * tokens, int64_t count) {
    ((Ngram *) corpus)->asyncInsert({ std::vector<int32_t>(tokens, tokens + count) });
}

void corpus_load(void * corpus, const char * name, const int32_t * tokens, int64_t count) {
    auto * ngram = (Ngram *) corpus;
    ngram->startExternalCorpusLoad();
    ngram->appendExternalCorpusTokens(std::vector<int32_t>(tokens, tokens + count));
    ngram->finishExternalCorpusLoad(name);
}

void corpus_synchronize(void * corpus) { ((Ngram *) corpus)->synchronize(); }

void corpus_match(void * corpus, const int32_t * tail, int64_t count, int64_t total, int32_t * out, uint8_t * mask) {
    auto found = ((Ngram *) corpus)->batchMatch({ 0 }, { std::vector<int32_t>(tail, tail + count) }, { (size_t) total });
    std::memcpy(out, found.token.data(), found.token.size() * sizeof(int32_t));
    std::memcpy(mask, found.mask.data(), found.mask.size());
}

}  // extern "C"
