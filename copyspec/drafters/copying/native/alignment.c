/* `alignment.Alignment` in C: rows of the edit distance table as bits, 64 positions at a time. See draft.h.
 *
 * alignment.py describes what happens here. An object is changed under the lock alone, and a token is read before
 * anything is changed: code that reading it runs meets an object that is whole.
 */

#include "draft.h"
#include <stddef.h>
#include <stdlib.h>

#define WORD 64
#define LARGEST_BAND (1 << 20)

typedef struct {
    int64_t token;
    Py_ssize_t place;
} Occurrence;

typedef struct {
    PyObject_HEAD
    Occurrence *occurrences; /* of all tokens of the source, in order of tokens and places. [length] */
    uint64_t *rises, *falls, *equal; /* bit i: of D[start + i + 1] and the entry before it. [room] */
    Py_ssize_t length, band, every, room;
    Py_ssize_t start, width, base, output, place, output_at_reset; /* place: -1 where none is known */
    Py_ssize_t soon, within;
} Alignment;

static int
compare(const void *first, const void *second)
{
    const Occurrence *a = first, *b = second;
    if (a->token != b->token) {
        return a->token < b->token ? -1 : 1;
    }
    return (a->place > b->place) - (a->place < b->place);
}

/* Of the bits from `from` to before `to`, those in the word that begins with bit `first`. */
static uint64_t
mask(Py_ssize_t first, Py_ssize_t from, Py_ssize_t to)
{
    from = from > first ? from - first : 0;
    to = to < first + WORD ? to - first : WORD;
    if (from >= to) {
        return 0;
    }
    return (to == WORD ? ~(uint64_t)0 : ((uint64_t)1 << to) - 1) & ~(((uint64_t)1 << from) - 1);
}

static void
set_bits(Alignment *self, uint64_t *bits, Py_ssize_t from, Py_ssize_t to)
{
    for (Py_ssize_t word = 0; word < self->room; word++) {
        bits[word] |= mask(word * WORD, from, to);
    }
}

/* D[start + at + 1] less the entry before it. */
static inline int
step(const Alignment *self, Py_ssize_t at)
{
    return (int)(self->rises[at / WORD] >> at % WORD & 1) - (int)(self->falls[at / WORD] >> at % WORD & 1);
}

/* The least entry from `first` to `stop`, less D[first]; into `where` its first position. */
static Py_ssize_t
least_between(const Alignment *self, Py_ssize_t first, Py_ssize_t stop, Py_ssize_t *where)
{
    Py_ssize_t cost = 0, least = 0;
    *where = first;
    for (Py_ssize_t position = first; position < stop; position++) {
        cost += step(self, position - self->start);
        if (cost < least) {
            least = cost;
            *where = position + 1;
        }
    }
    return least;
}

static void
shift_down(Alignment *self, uint64_t *bits, Py_ssize_t by)
{
    Py_ssize_t words = by / WORD, rest = by % WORD;
    for (Py_ssize_t word = 0; word < self->room; word++) {
        uint64_t low = word + words < self->room ? bits[word + words] : 0;
        uint64_t high = word + words + 1 < self->room ? bits[word + words + 1] : 0;
        bits[word] = rest ? low >> rest | high << (WORD - rest) : low;
    }
}

static void
move_band(Alignment *self)
{
    Py_ssize_t best, stop = self->start + self->width;
    least_between(self, self->start, stop, &best);
    if (best + self->band > stop) {
        Py_ssize_t further = best + 2 * self->band;
        further = further < self->length ? further : self->length;
        set_bits(self, self->rises, self->width, further - self->start); /* past the old band D rises by 1 each */
        stop = further;
    }
    if (best - self->band > self->start) {
        Py_ssize_t past = best - self->band - self->start;
        for (Py_ssize_t at = 0; at < past; at++) {
            self->base += step(self, at);
        }
        shift_down(self, self->rises, past);
        shift_down(self, self->falls, past);
        self->start += past;
    }
    self->width = stop - self->start;
}

static void
add_token(Alignment *self, int64_t token)
{
    const Py_ssize_t stop = self->start + self->width, words = (self->width + WORD - 1) / WORD;
    memset(self->equal, 0, (size_t)words * sizeof(uint64_t));
    Py_ssize_t low = 0, high = self->length;
    while (low < high) {
        const Py_ssize_t middle = low + (high - low) / 2;
        const Occurrence *each = &self->occurrences[middle];
        if (each->token < token || (each->token == token && each->place < self->start)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; low < self->length && self->occurrences[low].token == token; low++) {
        const Py_ssize_t at = self->occurrences[low].place - self->start;
        if (at >= stop - self->start) {
            break;
        }
        self->equal[at / WORD] |= (uint64_t)1 << at % WORD;
    }
    uint64_t carry = 0, above_across = 1, above_same = 0; /* what the word before hands on */
    for (Py_ssize_t word = 0; word < words; word++) {
        const uint64_t all = mask(word * WORD, 0, self->width), equal = self->equal[word];
        const uint64_t rises = self->rises[word], falls = self->falls[word];
        const uint64_t half = (equal & rises) + rises, sum = half + carry;
        carry = half < rises || sum < half;
        const uint64_t same = (sum ^ rises) | equal;
        const uint64_t larger = falls | (all & ~(same | rises)), kept = rises & same;
        const uint64_t across = larger << 1 | above_across, steady = equal | falls;
        self->rises[word] = all & ((kept << 1 | above_same) | ~(steady | across));
        self->falls[word] = all & across & steady;
        above_across = larger >> (WORD - 1);
        above_same = kept >> (WORD - 1);
    }
    self->base++;
    self->output++;
    if (self->output % self->every == 0 && self->width < self->length) {
        move_band(self);
    }
}

static PyObject *
extend(PyObject *object, PyObject *given)
{
    PyObject *tokens = PySequence_Fast(given, "tokens are a sequence");
    if (tokens == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(tokens); i++) {
        int64_t token;
        if (get_token(tokens, i, &token) < 0) {
            Py_DECREF(tokens);
            return NULL;
        }
        add_token((Alignment *)object, token);
    }
    Py_DECREF(tokens);
    Py_RETURN_NONE;
}

static PyObject *
reset_at(PyObject *object, PyObject *given)
{
    Alignment *self = (Alignment *)object;
    const Py_ssize_t position = PyNumber_AsSsize_t(given, PyExc_OverflowError);
    if (position == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (position < 0 || position > self->length + self->band) { /* a copy may end past the source */
        PyErr_Format(PyExc_ValueError, "position %zd of a source of %zd tokens", position, self->length);
        return NULL;
    }
    const Py_ssize_t stop = position + self->band < self->length ? position + self->band : self->length;
    self->start = position > self->band ? position - self->band : 0;
    self->width = stop - self->start;
    self->base = position - self->start;
    memset(self->rises, 0, (size_t)self->room * sizeof(uint64_t));
    memset(self->falls, 0, (size_t)self->room * sizeof(uint64_t));
    set_bits(self, self->falls, 0, self->base < self->width ? self->base : self->width);
    set_bits(self, self->rises, self->base, self->width);
    self->place = position;
    self->output_at_reset = self->output;
    Py_RETURN_NONE;
}

static PyObject *
least(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    const Alignment *self = (const Alignment *)object;
    Py_ssize_t where;
    return PyLong_FromSsize_t(self->base + least_between(self, self->start, self->start + self->width, &where));
}

static PyObject *
best(PyObject *object, PyObject *Py_UNUSED(nothing))
{
    const Alignment *self = (const Alignment *)object;
    Py_ssize_t where;
    least_between(self, self->start, self->start + self->width, &where);
    return PyLong_FromSsize_t(where);
}

static PyObject *
in_band(PyObject *object, PyObject *given)
{
    const Alignment *self = (const Alignment *)object;
    const Py_ssize_t position = PyNumber_AsSsize_t(given, NULL);
    if (position == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(self->start <= position && position <= self->start + self->width);
}

static PyObject *
find_near(PyObject *object, PyObject *args)
{
    const Alignment *self = (const Alignment *)object;
    Py_ssize_t first = self->start, stop = self->start + self->width, offset = 0, where;
    const Py_ssize_t since = self->output - self->output_at_reset;
    if (!PyArg_ParseTuple(args, "|n", &offset)) {
        return NULL;
    }
    if (offset < 0 || offset > PY_SSIZE_T_MAX - self->length) {
        PyErr_Format(PyExc_ValueError, "offset %zd of the positions of a source", offset);
        return NULL;
    }
    if (self->place >= 0 && since <= self->soon) {
        const Py_ssize_t from = self->place - self->within, to = self->place + 2 * since + self->within;
        first = from > first ? from : first;
        stop = to < stop ? to : stop;
    }
    PyObject *found = PyDict_New();
    const Py_ssize_t below = least_between(self, first, stop, &where) + self->within;
    Py_ssize_t cost = 0;
    for (Py_ssize_t position = first; found != NULL; position++) {
        if (cost <= below) {
            PyObject *key = PyLong_FromSsize_t(offset + position);
            PyObject *excess = PyLong_FromSsize_t(cost - below + self->within);
            if (key == NULL || excess == NULL || PyDict_SetItem(found, key, excess) < 0) {
                Py_CLEAR(found);
            }
            Py_XDECREF(key);
            Py_XDECREF(excess);
        }
        if (position >= stop) {
            break;
        }
        cost += step(self, position - self->start);
    }
    return found;
}

static void
dealloc(PyObject *object)
{
    Alignment *self = (Alignment *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(self->occurrences);
    PyMem_Free(self->rises);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"extend", extend, METH_O, NULL},    {"reset_at", reset_at, METH_O, NULL},
    {"least", least, METH_NOARGS, NULL}, {"best", best, METH_NOARGS, NULL},
    {"in_band", in_band, METH_O, NULL},  {"near", find_near, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec draft_alignment = {
    "copyspec.drafters.copying._growth.Alignment", sizeof(Alignment), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots,
};

/* Reads the tokens of the source, and puts them in order. */
static int
take_source(Alignment *self, PyObject *source)
{
    for (Py_ssize_t place = 0; place < self->length; place++) {
        self->occurrences[place].place = place;
        if (get_token(source, place, &self->occurrences[place].token) < 0) {
            return -1;
        }
    }
    qsort(self->occurrences, (size_t)self->length, sizeof(Occurrence), compare);
    return 0;
}

PyObject *
draft_align(PyObject *module, PyObject *args)
{
    PyObject *given;
    Py_ssize_t band, move_every, soon, within, free = 0;
    if (!PyArg_ParseTuple(args, "nnnnO|n", &band, &move_every, &soon, &within, &given, &free)) {
        return NULL;
    }
    if (band < 2 || band > LARGEST_BAND || free < 0 || move_every < 1 || soon < 0 || soon > LARGEST_BAND ||
        within < 0 || within > LARGEST_BAND) {
        PyErr_Format(PyExc_ValueError, "a band of %zd, with %zd free, moved every %zd, near within %zd and %zd", band,
                     free, move_every, soon, within);
        return NULL;
    }
    PyObject *source = PySequence_Fast(given, "a source is a sequence");
    Alignment *self = source == NULL ? NULL : PyObject_New(Alignment, ((State *)PyModule_GetState(module))->alignment);
    if (self == NULL) {
        Py_XDECREF(source);
        return NULL;
    }
    const Py_ssize_t length = PySequence_Fast_GET_SIZE(source);
    memset((char *)self + offsetof(Alignment, occurrences), 0, sizeof(*self) - offsetof(Alignment, occurrences));
    self->length = length;
    self->band = band;
    self->every = move_every < band / 2 ? move_every : band / 2;
    self->soon = soon;
    self->within = within;
    self->width = length < 2 * band ? length : 2 * band;
    self->place = free ? -1 : 0;
    self->room = (length < 5 * band ? length : 5 * band) / WORD + 1; /* what `move_band` has at most, before it shifts */
    self->occurrences = PyMem_New(Occurrence, length + 1);
    self->rises = PyMem_Calloc((size_t)(3 * self->room), sizeof(uint64_t));
    if (self->occurrences == NULL || self->rises == NULL) {
        PyErr_NoMemory();
    } else {
        self->falls = self->rises + self->room;
        self->equal = self->falls + self->room;
        set_bits(self, self->rises, free < self->width ? free : self->width, self->width);
        if (take_source(self, source) == 0) {
            Py_DECREF(source);
            return (PyObject *)self;
        }
    }
    Py_DECREF(source);
    Py_DECREF(self);
    return NULL;
}
