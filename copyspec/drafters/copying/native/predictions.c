/* The next tokens, by predictors such as a draft model or a datastore: `growth._mix` in C. See draft.h.
 *
 * Predictors are Python's: each call may run any code, which may change the caller's lists. No borrowed
 * reference to their items is kept across a call; the nodes and votes belong to this draft alone.
 */

#include "draft.h"

/* Of `growth.PredictorCalls`. */
enum { PREDICT, WEIGHT, IS_MODEL, FIELDS };

int
draft_take_predictors(Draft *draft, PyObject *predictors)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(predictors); i++) {
        PyObject *predictor = PyTuple_GET_ITEM(predictors, i);
        if (!PyTuple_Check(predictor) || PyTuple_GET_SIZE(predictor) != FIELDS ||
            !PyBool_Check(PyTuple_GET_ITEM(predictor, IS_MODEL))) {
            PyErr_Format(PyExc_TypeError, "a predictor is a tuple of two functions and a bool, got %R", predictor);
            return -1;
        }
        draft->has_model |= PyTuple_GET_ITEM(predictor, IS_MODEL) == Py_True;
    }
    draft->predictors = predictors;
    draft->mixes = PyList_New(0);
    return draft->mixes == NULL ? -1 : 0;
}

/* `tree.path_to`, as tokens. */
static PyObject *
path_to(const Draft *draft, Py_ssize_t node)
{
    Py_ssize_t depth = node == ROOT ? 0 : draft->nodes.items[node].depth;
    PyObject *path = PyTuple_New(depth);
    for (; path != NULL && node != ROOT; node = draft->nodes.items[node].parent) {
        PyObject *token = PyLong_FromLongLong(draft->nodes.items[node].token);
        if (token == NULL) {
            Py_DECREF(path);
            return NULL;
        }
        PyTuple_SET_ITEM(path, --depth, token);
    }
    return path;
}

/* Asks one predictor: its predictions as a list or tuple, or NULL where it has none, or with an exception. */
static PyObject *
ask(PyObject *predictor, PyObject *path, double miss_prob, double *weight)
{
    PyObject *probs = PyObject_CallOneArg(PyTuple_GET_ITEM(predictor, PREDICT), path), *answer = NULL;
    if (probs != NULL && probs != Py_None) {
        answer = PySequence_Fast(probs, "predictions are a sequence of (token, probability)");
    }
    Py_XDECREF(probs);
    if (answer == NULL || PySequence_Fast_GET_SIZE(answer) == 0) {
        Py_XDECREF(answer);
        return NULL;
    }
    PyObject *argument = PyFloat_FromDouble(miss_prob);
    PyObject *returned = argument == NULL ? NULL : PyObject_CallOneArg(PyTuple_GET_ITEM(predictor, WEIGHT), argument);
    Py_XDECREF(argument);
    *weight = returned == NULL ? -1.0 : PyFloat_AsDouble(returned);
    Py_XDECREF(returned);
    if (!PyErr_Occurred() && !(*weight > 0.0 && *weight < INFINITY)) {
        draft_wrong_number("predictor weight must be > 0, got %R", *weight);
    }
    if (PyErr_Occurred()) {
        Py_DECREF(answer);
        return NULL;
    }
    return answer;
}

/* One prediction of a predictor as a vote; `factor`: the weight of the predictor. */
static int
add_prediction(Draft *draft, PyObject *pair, double factor, Py_ssize_t drafter)
{
    int64_t token;
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "a prediction is a token and its probability, got %R", pair);
        return -1;
    }
    if (draft_integer(PyTuple_GET_ITEM(pair, 0), &token) < 0) {
        return -1;
    }
    double probability = PyFloat_AsDouble(PyTuple_GET_ITEM(pair, 1));
    if (probability == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (token < 0 || !(probability >= 0.0 && probability < INFINITY)) {
        PyErr_Format(PyExc_ValueError, "a prediction is a token from 0 and its probability, got %R", pair);
        return -1;
    }
    return draft_add_prediction(draft, token, factor * probability, drafter);
}

/* Appends the `growth.Mix` of a node to `draft->mixes`. `answers`: of each predictor, or NULL. */
static int
keep_mix(Draft *draft, Py_ssize_t node, double miss_weight, PyObject *const *answers, Py_ssize_t predictors)
{
    PyObject *copies = PyDict_New(), *answered = PyList_New(0);
    int failed = copies == NULL || answered == NULL;
    for (Py_ssize_t i = 0; i < draft->votes.count && !failed; i++) {
        PyObject *token = PyLong_FromLongLong(draft->votes.items[i].token);
        PyObject *weight = PyFloat_FromDouble(draft->votes.items[i].weight);
        failed = token == NULL || weight == NULL || PyDict_SetItem(copies, token, weight) < 0;
        Py_XDECREF(token);
        Py_XDECREF(weight);
    }
    for (Py_ssize_t i = 0; i < predictors && !failed; i++) {
        if (answers[i] != NULL) {
            PyObject *number = PyLong_FromSsize_t(i);
            failed = number == NULL || PyList_Append(answered, number) < 0;
            Py_XDECREF(number);
        }
    }
    PyObject *mix = failed ? NULL : Py_BuildValue("(ndOO)", node, miss_weight, copies, answered);
    failed = mix == NULL || PyList_Append(draft->mixes, mix) < 0;
    Py_XDECREF(mix);
    Py_XDECREF(copies);
    Py_XDECREF(answered);
    return failed ? -1 : 0;
}

int
draft_mix(Draft *draft, Py_ssize_t node, double *total)
{
    const Py_ssize_t predictors = PyTuple_GET_SIZE(draft->predictors);
    if (predictors == 0) {
        return 0;
    }
    double miss_prob = 1.0 - draft_weight(draft->votes.items, draft->votes.count) / *total;
    miss_prob = miss_prob > draft->tables->miss_prob_floor ? miss_prob : draft->tables->miss_prob_floor;
    const double miss_weight = miss_prob * *total;
    PyObject *path = path_to(draft, node), **answers = PyMem_Calloc((size_t)predictors, sizeof(*answers));
    double *weights = PyMem_Calloc((size_t)predictors, sizeof(*weights));
    Sum all = {0.0, 0.0}; /* of the weights, added as Python's `sum` does */
    int result = -1, answered = 0;
    if (path == NULL || answers == NULL || weights == NULL) {
        if (path != NULL) {
            PyErr_NoMemory();
        }
        goto done;
    }
    for (Py_ssize_t i = 0; i < predictors; i++) {
        PyObject *predictor = PyTuple_GET_ITEM(draft->predictors, i);
        if (miss_prob < draft->tables->table_min_miss_prob && PyTuple_GET_ITEM(predictor, IS_MODEL) != Py_True) {
            continue;
        }
        answers[i] = ask(predictor, path, miss_prob, &weights[i]);
        if (answers[i] != NULL) {
            add_to(&all, weights[i]);
            answered = 1;
        } else if (PyErr_Occurred()) {
            goto done;
        }
    }
    if (answered) {
        if (keep_mix(draft, node, miss_weight, answers, predictors) < 0) {
            goto done;
        }
        for (Py_ssize_t i = 0; i < predictors; i++) {
            const double factor = weights[i] * (1.0 + miss_weight / summed(all));
            for (Py_ssize_t j = 0; answers[i] != NULL && j < PySequence_Fast_GET_SIZE(answers[i]); j++) {
                PyObject *pair = draft_item(answers[i], j);
                int failed = pair == NULL || add_prediction(draft, pair, factor, i) < 0;
                Py_XDECREF(pair);
                if (failed) {
                    goto done;
                }
            }
        }
        *total += summed(all);
        if (draft_check_total(*total) < 0) {
            goto done;
        }
    }
    result = 0;
done:
    for (Py_ssize_t i = 0; answers != NULL && i < predictors; i++) {
        Py_XDECREF(answers[i]);
    }
    PyMem_Free(answers);
    PyMem_Free(weights);
    Py_XDECREF(path);
    return result;
}
