// Prints, as JSON, lists that the page's own engine makes from a written folder. The one argument
// is JSON: folder, k, and asked: [{dim, row} or {dim, purchases}].
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const given = JSON.parse(process.argv[2]);
const { Size } = require(path.resolve(given.folder, "engine.js"));
const read = (name) => fs.readFileSync(path.join(given.folder, name));
const { about } = JSON.parse(read("manifest.json").toString());
const files = new Map();
for (const name of new Set(about.sizes.flatMap((size) => size.files))) {
  const bytes = read(name);
  files.set(name, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
}
const sizes = new Map(about.sizes.map((size) => [size.dim, new Size(about, size, files)]));
const lists = given.asked.map(({ dim, row, purchases }) => {
  const size = sizes.get(dim);
  const person = purchases ? size.newcomer(purchases) : size.person(row);
  const list = size.recommend(person, given.k);
  return {
    items: list.map(({ item }) => item),
    scores: list.map(({ score }) => score),
    reasons: list.map(({ item }) => size.reasons(person, item).map((reason) => reason.item)),
  };
});
console.log(JSON.stringify(lists));
