/* The next tokens, by n-grams. See draft.h. */

#include "draft.h"

/* The bits of a key of so many tokens. */
static uint64_t
key_mask(const Tables *tables, int tokens)
{
    return ((uint64_t)1 << tables->key_bits * tokens) - 1;
}

/* Whether `token` can stand in a key: others cut off what comes before them. */
static int
has_key(const Tables *tables, int64_t token)
{
    return token >= 0 && (uint64_t)token < key_mask(tables, 1);
}

uint64_t
draft_longer_key(const Tables *tables, uint64_t key, int64_t token)
{
    return has_key(tables, token) ? key << tables->key_bits | (uint64_t)(token + 1) : 0;
}

uint64_t
draft_context(const Draft *draft, Py_ssize_t node)
{
    const Tables *tables = draft->tables;
    uint64_t key = 0;
    int shift = 0;
    for (; node != ROOT; node = draft->nodes.items[node].parent) {
        int64_t token = draft->nodes.items[node].token;
        if (!has_key(tables, token)) {
            return key;
        }
        key |= (uint64_t)(token + 1) << shift;
        shift += tables->key_bits;
        if (shift == tables->key_bits * tables->orders) {
            return key;
        }
    }
    return (draft->context << shift | key) & key_mask(tables, tables->orders);
}

/* Finds the continuations of a context as a span of `tokens`, and into `left` the share of the weight that they leave.
 * Returns 1, or 0 for an unknown context; -1 with an exception. */
static int
find_span(const Draft *draft, uint64_t key, Group *span, double *left)
{
    PyObject *number = PyLong_FromUnsignedLongLong(key);
    if (number == NULL) {
        return -1;
    }
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(draft->contexts, number));
    Py_DECREF(number);
    span->count = 0;
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int64_t place;
    int failed = draft_integer(found, &place);
    Py_DECREF(found);
    if (failed) {
        return -1;
    }
    if (place < 0 || place >= draft->places_of) {
        PyErr_Format(PyExc_ValueError, "context %llu of the n-grams has place %lld of %lld", (unsigned long long)key,
                     (long long)place, (long long)draft->places_of);
        return -1;
    }
    int64_t start = draft->starts[place], stop = draft->stops[place];
    if (start < 0 || stop < start || stop > draft->words_of) {
        PyErr_Format(PyExc_ValueError, "context %llu of the n-grams has the continuations %lld to %lld of %lld",
                     (unsigned long long)key, (long long)start, (long long)stop, (long long)draft->words_of);
        return -1;
    }
    span->first = (Py_ssize_t)start;
    span->count = (Py_ssize_t)(stop - start);
    *left = draft->left[place];
    if (!(*left >= 0.0 && *left <= 1.0)) {
        return draft_wrong_number("a context of the n-grams leaves %R; shares are from 0 to 1", *left);
    }
    return 1;
}

/* Adds the tokens of `span` to `words`, each with its part of `weight`, unless one of the spans `longer` has it. */
static int
add_words(Draft *draft, Group span, double weight, double least, const Group *longer, int spans)
{
    for (Py_ssize_t i = span.first; i < span.first + span.count; i++) {
        Word word = {draft->tokens[i], weight * draft->shares[i]};
        if (word.share < least) {
            break;
        }
        if (word.token < 0) {
            PyErr_Format(PyExc_ValueError, "the n-grams hold token %lld; token ids are integers from 0",
                         (long long)word.token);
            return -1;
        }
        if (!(word.share <= weight)) {
            return draft_wrong_number("a continuation of the n-grams has share %R; shares are from 0 to 1",
                                      draft->shares[i]);
        }
        int known = 0;
        for (int j = 0; j < spans && !known; j++) {
            for (Py_ssize_t k = longer[j].first; k < longer[j].first + longer[j].count && !known; k++) {
                known = draft->tokens[k] == word.token;
            }
        }
        if (!known && ADD(draft->words, word) < 0) {
            return -1;
        }
    }
    return 0;
}

int
draft_share_out(Draft *draft, double weight, uint64_t key, double least)
{
    const Tables *tables = draft->tables;
    Group longer[ORDERS]; /* the continuations of longer contexts */
    int spans = 0;

    draft->words.count = 0;
    if (least < tables->min_share * weight) {
        least = tables->min_share * weight;
    }
    for (int tokens = tables->orders - 1; key != 0; tokens--) {
        Group span;
        double left;
        int found = find_span(draft, key, &span, &left);
        if (found < 0) {
            return -1;
        }
        if (found) {
            if (add_words(draft, span, weight, least, longer, spans) < 0) {
                return -1;
            }
            weight *= left;
            if (weight < least) {
                break;
            }
            longer[spans++] = span;
        }
        /* Without its first token: keys of fewer tokens are those already. */
        while (tokens > 0 && key <= key_mask(tables, tokens)) {
            tokens--;
        }
        key = tokens > 0 ? key & key_mask(tables, tokens) : 0;
    }
    return 0;
}

void
draft_sort_words(Draft *draft)
{
    Word *words = draft->words.items;
    for (Py_ssize_t i = 1; i < draft->words.count; i++) {
        Word word = words[i];
        Py_ssize_t j = i;
        for (; j > 0 && words[j - 1].share < word.share; j--) {
            words[j] = words[j - 1];
        }
        words[j] = word;
    }
    if (draft->words.count > draft->tables->max_continuations) {
        draft->words.count = draft->tables->max_continuations;
    }
}
