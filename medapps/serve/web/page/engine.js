"use strict";
/* Lists from the tables of a page: the same parts, standardisation, weights and order as in
   medapps/recommend. No dependencies; a browser loads it as a script, node by require. */
(function (root) {
  const ARRAYS = {
    float32: Float32Array, int8: Int8Array, uint8: Uint8Array, uint16: Uint16Array,
    uint32: Uint32Array,
  };
  const EPSILON = 1e-12;
  const STEPS = 12; // conjugate-gradient steps of a new user's vector

  /* One array of a file. `files` maps names to ArrayBuffers. */
  function plain(files, place) {
    const kind = ARRAYS[place.dtype];
    const count = place.shape.reduce((a, b) => a * b, 1);
    return new kind(files.get(place.file), place.at, count);
  }

  /* A table of vectors as float32, whatever it is stored in. */
  function table(files, places, name) {
    const values = plain(files, places[name]);
    const scale = places[name + ".scale"];
    if (!scale) return values;
    const scales = plain(files, scale);
    const width = places[name].shape[1];
    const out = new Float32Array(values.length);
    for (let row = 0, at = 0; row < scales.length; row++)
      for (let k = 0; k < width; k++, at++) out[at] = values[at] * scales[row];
    return out;
  }

  /* A sparse matrix by rows; without values all are ones, and nobody asks for them. */
  function sparse(files, places) {
    const pointer = plain(files, places.pointer);
    const columns = plain(files, places.columns);
    let values = places.values && plain(files, places.values);
    if (places["values.scale"]) {
      const scales = plain(files, places["values.scale"]);
      const wide = new Float32Array(values.length);
      for (let row = 0; row < scales.length; row++)
        for (let at = pointer[row]; at < pointer[row + 1]; at++) wide[at] = values[at] * scales[row];
      values = wide;
    }
    return { pointer, columns, values };
  }

  const DISTANCES = {
    euclidean(query, items, at) {
      let sum = 0;
      for (let k = 0; k < query.length; k++) { const d = query[k] - items[at + k]; sum += d * d; }
      return Math.sqrt(sum + EPSILON);
    },
    product(query, items, at) {
      let sum = 0;
      for (let k = 0; k < query.length; k++) sum -= query[k] * items[at + k];
      return sum;
    },
    absolute(query, items, at) {
      let sum = 0;
      for (let k = 0; k < query.length; k++) sum += Math.abs(query[k] - items[at + k]);
      return sum;
    },
    modulus(query, items, at) {
      let sum = 0;
      for (let k = 0; k < query.length; k += 2) {
        const a = query[k] - items[at + k], b = query[k + 1] - items[at + k + 1];
        sum += Math.sqrt(a * a + b * b + EPSILON);
      }
      return sum;
    },
  };

  /* Rows of length one, each number times its stretch. */
  function stretched(items, stretch) {
    const width = stretch.length;
    const out = new Float32Array(items.length);
    for (let at = 0; at < items.length; at += width) {
      let sum = 0;
      for (let k = 0; k < width; k++) sum += items[at + k] * items[at + k];
      const length = Math.sqrt(sum + EPSILON);
      for (let k = 0; k < width; k++) out[at + k] = items[at + k] / length * stretch[k];
    }
    return out;
  }

  class Part {
    constructor(files, name, about, users, count) {
      this.name = name;
      this.about = about;
      this.kind = about.kind;
      this.count = count;
      const places = about.arrays;
      if (this.kind === "neighbours") { this.matrix = sparse(files, places); return; }
      this.items = table(files, places, "items");
      if (this.kind === "constant") return;
      this.width = places.items.shape[1];
      if (this.kind === "projection") {
        this.weight = plain(files, places.weight);
        this.filter = plain(files, places.filter);
        return;
      }
      this.users = table(files, users, name + ".users");
      if (places.base) this.base = plain(files, places.base);
      if (places.stranger) this.stranger = plain(files, places.stranger);
      if (this.kind === "distance") {
        this.unknown = plain(files, places.unknown);
        this.placed = places.stretch ? stretched(this.items, plain(files, places.stretch)) : this.items;
      }
    }

    /* Scores of all items for a person: a row of the page's users or, with row -1, somebody new. */
    scores(person) {
      if (this.kind === "constant") return this.items;
      const out = new Float32Array(this.count);
      if (this.kind === "neighbours") {
        const { pointer, columns, values } = this.matrix;
        for (const item of person.purchases)
          for (let at = pointer[item]; at < pointer[item + 1]; at++) out[columns[at]] += values[at];
        return out;
      }
      if (this.kind === "distance") return person.inGraph ? this.distances(person.row, out) : out;
      const vector = this.vector(person), width = this.width, items = this.items;
      for (let i = 0, at = 0; i < this.count; i++, at += width) {
        let sum = 0;
        for (let k = 0; k < width; k++) sum += vector[k] * items[at + k];
        out[i] = sum;
      }
      return out;
    }

    distances(row, out) {
      const { measure, scale, margin } = this.about;
      const far = DISTANCES[measure];
      const query = this.users.subarray(row * this.width, (row + 1) * this.width);
      let least = Infinity;
      for (let i = 0; i < this.count; i++) {
        out[i] = margin - scale * far(query, this.placed, i * this.width);
        if (out[i] < least) least = out[i];
      }
      for (const i of this.unknown) out[i] = least;
      return out;
    }

    vector(person) {
      if (this.kind === "projection") return this.projected(person.purchases);
      if (person.row >= 0) return this.users.subarray(person.row * this.width, (person.row + 1) * this.width);
      if (!this.about.fold) return this.stranger;
      return person.purchases.length ? this.folded(person.purchases) : this.base;
    }

    /* The vector of whoever has these purchases: their directions, filtered. */
    projected(purchases) {
      const w = this.width, out = new Float32Array(w);
      for (const item of purchases) {
        const square = this.weight[item] * this.weight[item];
        for (let k = 0; k < w; k++) out[k] += square * this.items[item * w + k];
      }
      return out.map((value, k) => value * this.filter[k]);
    }

    /* Items^T items times the weight of a pair without a purchase; needed for new users only. */
    gram() {
      if (this._gram) return this._gram;
      const w = this.width, items = this.items, out = new Float64Array(w * w);
      for (let at = 0; at < items.length; at += w)
        for (let a = 0; a < w; a++) {
          const x = items[at + a];
          if (x !== 0) for (let b = 0; b <= a; b++) out[a * w + b] += x * items[at + b];
        }
      for (let a = 0; a < w; a++)
        for (let b = 0; b <= a; b++) {
          out[a * w + b] *= this.about.fold.unobserved;
          out[b * w + a] = out[a * w + b];
        }
      return (this._gram = out);
    }

    /* The vector of a new user: (a0 G + (1 - a0) Q^T Q + l) z = sum of q + l base. */
    folded(purchases) {
      const w = this.width, items = this.items, gram = this.gram(), base = this.base;
      const { unobserved, regularization, power } = this.about.fold;
      const level = regularization * Math.pow(1 + purchases.length, power);
      const image = (p) => {
        const out = new Float64Array(w);
        for (let a = 0; a < w; a++) {
          let sum = level * p[a];
          for (let b = 0; b < w; b++) sum += gram[a * w + b] * p[b];
          out[a] = sum;
        }
        for (const item of purchases) {
          const at = item * w;
          let sum = 0;
          for (let k = 0; k < w; k++) sum += items[at + k] * p[k];
          for (let k = 0; k < w; k++) out[k] += (1 - unobserved) * sum * items[at + k];
        }
        return out;
      };
      const x = Float64Array.from(base), start = image(x), residual = new Float64Array(w);
      for (let k = 0; k < w; k++) residual[k] = level * base[k] - start[k];
      for (const item of purchases)
        for (let k = 0; k < w; k++) residual[k] += items[item * w + k];
      const p = Float64Array.from(residual);
      const dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);
      let norm = dot(residual, residual);
      for (let step = 0; step < STEPS; step++) {
        const q = image(p), length = norm / Math.max(dot(p, q), 1e-20);
        for (let k = 0; k < w; k++) { x[k] += length * p[k]; residual[k] -= length * q[k]; }
        const before = norm;
        norm = dot(residual, residual);
        const ratio = norm / Math.max(before, 1e-20);
        for (let k = 0; k < w; k++) p[k] = p[k] * ratio + residual[k];
      }
      return Float32Array.from(x);
    }
  }

  /* Mean of scores, and what they are multiplied with so that their deviation is the weight. */
  function standard(scores, weight) {
    const shift = scores[0], n = scores.length;
    let sum = 0, squares = 0;
    for (let i = 0; i < n; i++) { const x = scores[i] - shift; sum += x; squares += x * x; }
    const centre = sum / n, mean = centre + shift;
    const deviation = Math.sqrt(Math.max(squares / n - centre * centre, 0));
    const flat = deviation <= 1e-6 * Math.abs(mean) + 1e-30;
    return { mean, scale: flat ? 0 : weight / deviation };
  }

  /* The k largest, best first; of equal ones the lower id. */
  function best(scores, k) {
    const ids = [];
    for (let i = 0; i < scores.length; i++) {
      const x = scores[i];
      if (x === -Infinity || (ids.length === k && !(x > scores[ids[k - 1]]))) continue;
      let j = ids.length < k ? ids.push(i) - 1 : k - 1;
      for (; j > 0 && scores[ids[j - 1]] < x; j--) ids[j] = ids[j - 1];
      ids[j] = i;
    }
    return ids;
  }

  /* One size of a page, once its files are there. */
  class Size {
    constructor(about, size, files) {
      this.about = size;
      this.dim = size.dim;
      this.k = about.k;
      this.count = about.items.count;
      this.inGraph = plain(files, size.users.in_graph);
      this.owned = sparse(files, about.purchases);
      this.parts = size.weights.names.map(
        (name) => new Part(files, name, size.parts[name], size.users, this.count));
    }

    /* A user of the page, by row. */
    person(row) {
      const { pointer, columns } = this.owned;
      const purchases = Array.from(columns.subarray(pointer[row], pointer[row + 1]));
      return { row, purchases, inGraph: this.inGraph[row] === 1 };
    }

    /* Somebody new who has these items. */
    newcomer(purchases) {
      return { row: -1, purchases: [...new Set(purchases)].sort((a, b) => a - b), inGraph: false };
    }

    /* Weights of the parts for a person. */
    weights(person) {
      const { names, bounds, values, cold, popular } = this.about.weights;
      const n = person.purchases.length;
      const bucket = bounds.filter((bound) => bound < n).length;
      let row = n > 0 ? values[bucket] : cold;
      if (!person.inGraph) row = row.map((w, j) => (this.parts[j].kind === "distance" ? 0 : w));
      const nothing = row.every((w) => w === 0) || (n === 0 && !person.inGraph);
      return nothing ? names.map((name) => (name === popular ? 1 : 0)) : row;
    }

    /* The k best new items: item, score, and what each part adds to it. */
    recommend(person, k = this.k) {
      const weights = this.weights(person);
      const used = this.parts
        .map((part, j) => ({ part, weight: Math.fround(weights[j]) }))
        .filter(({ weight }) => weight !== 0);
      const alone = used.length === 1 && used[0].weight > 0;
      const total = new Float32Array(this.count), sum = new Float64Array(this.count);
      const added = used.map(({ part, weight }) => {
        const scores = part.scores(person);
        const { mean, scale } = alone ? { mean: 0, scale: 1 } : standard(scores, weight);
        for (let i = 0; i < scores.length; i++) sum[i] += (scores[i] - mean) * scale;
        return { name: part.name, scores, mean, scale };
      });
      total.set(sum);
      for (const item of person.purchases) total[item] = -Infinity;
      return best(total, k).map((item) => ({
        item,
        score: total[item],
        parts: added.map(({ name, scores, mean, scale }) => (
          { name, value: (scores[item] - mean) * scale })),
      }));
    }

    /* The purchases of a person most like an item: by the cosine of vectors, else as neighbours. */
    reasons(person, item, count = 3) {
      const part = this.parts.find(({ name }) => name === this.about.likeness);
      const near = part ? (one) => cosine(part.items, part.width, one, item) : this.neighbour(item);
      return person.purchases
        .filter((one) => one !== item)
        .map((one) => ({ item: one, strength: near(one) }))
        .filter(({ strength }) => strength > 0)
        .sort((a, b) => b.strength - a.strength || a.item - b.item)
        .slice(0, count);
    }

    neighbour(item) {
      const part = this.parts.find(({ kind }) => kind === "neighbours");
      return (one) => {
        if (!part) return 0;
        const { pointer, columns, values } = part.matrix;
        for (let at = pointer[one]; at < pointer[one + 1]; at++)
          if (columns[at] === item) return values[at];
        return 0;
      };
    }
  }

  function cosine(items, width, one, other) {
    let a = 0, b = 0, both = 0;
    for (let k = 0; k < width; k++) {
      const x = items[one * width + k], y = items[other * width + k];
      a += x * x; b += y * y; both += x * y;
    }
    return both / (Math.max(Math.sqrt(a), 1e-12) * Math.max(Math.sqrt(b), 1e-12));
  }

  root.MedappsEngine = { Size };
  if (typeof module !== "undefined") module.exports = root.MedappsEngine;
})(typeof self !== "undefined" ? self : globalThis);
