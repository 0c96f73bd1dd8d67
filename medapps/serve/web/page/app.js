"use strict";
/* The page: who, which size, and the list. All numbers come from engine.js. */
(function () {
  const $ = (id) => document.getElementById(id);
  const OFFERS = 12;
  const SUGGESTIONS = 50;
  const REPEATS = 15; // of a list whose time is taken, but not beyond
  const PATIENCE = 60; // milliseconds
  const WORDS = {
    collaborative: "similar buyers",
    gmf: "similar buyers and the graph",
    neighbours: "bought together",
    spectral: "bought by the same people",
    graph: "near in the graph",
    service: "similar place in the graph",
    popularity: "popular",
  };

  const files = new Map(); // name -> ArrayBuffer
  const sizes = new Map(); // place of a size -> Size
  const seen = new Map(); // place of a size -> {items, time} for the person shown
  const state = { mode: "user", row: 0, chosen: [], place: 0, shown: null };
  let about, users, items, popular;

  const make = (tag, text, kind) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const title = (item) => (items.titles && items.titles[item]) || items.ids[item];
  const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
  const bytes = (n) => (n < 1e3 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(0)} kB`
    : n < 1e7 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e6).toFixed(0)} MB`);
  const time = (ms) => (ms < 0.1 ? "< 0.1 ms" : ms < 10 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(0)} ms`);
  const quality = (size) => (size.quality ? size.quality.ndcg_at_10.toFixed(3) : "–");

  function fail(error) {
    const local = location.protocol === "file:";
    $("problem").textContent = local
      ? "Open this folder through a web server, for example: python -m http.server -d FOLDER"
      : `This page cannot be shown: ${error.message}`;
    $("problem").hidden = false;
    $("data").textContent = "";
  }

  async function get(name) {
    const answer = await fetch(name);
    if (!answer.ok) throw new Error(`${name} is missing (${answer.status}).`);
    return answer;
  }

  async function load(place) {
    if (sizes.has(place)) return sizes.get(place);
    const wanted = about.sizes[place].files.filter((name) => name.endsWith(".bin") && !files.has(name));
    await Promise.all(wanted.map(async (name) => files.set(name, await (await get(name)).arrayBuffer())));
    sizes.set(place, new MedappsEngine.Size(about, about.sizes[place], files));
    return sizes.get(place);
  }

  /* The list of a person, and the median time that it takes. */
  function timed(size, person) {
    const times = [], start = performance.now();
    let list;
    do {
      const began = performance.now();
      list = size.recommend(person);
      times.push(performance.now() - began);
    } while (times.length < REPEATS && performance.now() - start < PATIENCE);
    return { list, time: times.sort((a, b) => a - b)[times.length >> 1] };
  }

  let asked = 0;
  async function show() {
    const turn = ++asked;
    const { place } = state;
    const size = await load(place);
    if (turn !== asked) return; // somebody moved on while it loaded
    const person = state.mode === "user" ? size.person(state.row) : size.newcomer(state.chosen);
    const found = timed(size, person);
    seen.set(place, { items: found.list.map(({ item }) => item), time: found.time });
    showPerson(person);
    showList(size, person, found.list);
    showSize(size, found.time);
    document.body.dataset.shown = JSON.stringify([state.mode, state.mode === "user" ? state.row : state.chosen, size.dim]);
  }

  function showPerson(person) {
    if (state.mode === "new") {
      $("new-note").textContent = state.chosen.length
        ? `${plural(state.chosen.length, "product", "products")} chosen. Tap one to take it back.`
        : "Tap a few products that you have or like. Until then you see what is popular.";
      return;
    }
    const place = person.inGraph ? "in the graph" : "not in the graph";
    $("user-note").textContent = `${person.purchases.length ? plural(person.purchases.length, "purchase", "purchases") : "No purchases"}, ${place}.`;
    $("history").hidden = !person.purchases.length;
    $("owned").replaceChildren(...person.purchases.map((item) => make("li", title(item))));
  }

  function showList(size, person, list) {
    const before = state.shown;
    const top = list.length ? list[0].score : 0, least = list.length ? list[list.length - 1].score : 0;
    let fresh = 0, moved = 0;
    $("list").replaceChildren(...list.map(({ item, score, parts }, place) => {
      const line = make("li");
      line.dataset.item = items.ids[item];
      line.dataset.score = String(score);
      line.append(make("span", String(place + 1), "rank"), make("span", title(item), "name"));
      const old = before ? before.indexOf(item) : place;
      const badge = make("span", "", "badge");
      if (old < 0) { badge.textContent = "new"; badge.classList.add("new"); fresh++; }
      else if (old !== place) {
        badge.textContent = `${old > place ? "↑" : "↓"} ${Math.abs(old - place)}`;
        badge.setAttribute("aria-label", `${Math.abs(old - place)} ${old > place ? "up" : "down"}`);
        badge.classList.add("moved");
        moved++;
      }
      line.append(badge);
      const reasons = size.reasons(person, item);
      const own = state.mode === "new" || about.one_user ? "Like your" : "Like the user's";
      if (reasons.length) {
        const why = make("span", `${own} ${reasons.map((reason) => title(reason.item)).join(", ")}`, "why");
        why.dataset.reasons = JSON.stringify(reasons.map((reason) => items.ids[reason.item]));
        line.append(why);
      }
      const most = parts.reduce((a, b) => (b.value > a.value ? b : a));
      const shares = make("span", undefined, "shares"), bar = make("span", undefined, "bar"), fill = make("span");
      fill.style.width = `${Math.round(25 + 75 * (top > least ? (score - least) / (top - least) : 1))}%`;
      bar.append(fill);
      bar.setAttribute("aria-hidden", "true");
      shares.append(bar, make("span", `mostly: ${WORDS[most.name] || most.name}`));
      shares.title = parts.map(({ name, value }) => `${name} ${value.toFixed(2)}`).join(", ");
      line.append(shares);
      return line;
    }));
    $("change").textContent = !before ? ""
      : fresh + moved === 0 ? "The same list as before."
        : `Against the list before: ${fresh} new, ${moved} moved.`;
    state.shown = list.map(({ item }) => item);
  }

  function showSize(size, taken) {
    const told = about.sizes[state.place];
    $("dim").textContent = String(size.dim);
    $("size").setAttribute("aria-valuetext", `${size.dim} numbers per vector`);
    $("bytes").textContent = bytes(told.bytes);
    $("time").textContent = time(taken);
    $("quality").textContent = quality(told);
    const last = about.sizes.length - 1, most = seen.get(last);
    $("sizes").tBodies[0].replaceChildren(...about.sizes.map((other, place) => {
      const row = make("tr"), known = seen.get(place);
      if (place === state.place) row.setAttribute("aria-current", "true");
      const head = make("th", String(other.dim));
      head.scope = "row";
      const common = known && most ? known.items.filter((item) => most.items.includes(item)).length : null;
      row.append(head, make("td", bytes(other.bytes)), make("td", known ? time(known.time) : "–"),
        make("td", quality(other)), make("td", common === null ? "–" : `${common} of ${most.items.length}`));
      return row;
    }));
    const { same_lists: same, same_items: alike, users: count } = told.agreement;
    const percent = (share) => `${(100 * share).toFixed(share < 1 ? 1 : 0)} %`;
    $("agreement").textContent = `"In common" is with the largest size. Quality was measured on held-out purchases, before vectors were stored as ${about.dtype}; `
      + `as stored, ${percent(same)} of ${plural(count, "list", "lists")} are the same in every place and ${percent(alike)} of the products are the same.`;
  }

  /* Another person: nothing is compared with the list of the one before. */
  function someone(change) {
    Object.assign(state, change, { shown: null });
    seen.clear();
    return guarded(async () => { await show(); await fillSizes(); });
  }

  /* The lists of the other sizes, once the one that is looked at is there. */
  async function fillSizes() {
    const turn = asked;
    for (let place = 0; place < about.sizes.length; place++) {
      if (seen.has(place)) continue;
      const size = await load(place);
      await new Promise((resolve) => setTimeout(resolve));
      if (turn !== asked) return;
      const person = state.mode === "user" ? size.person(state.row) : size.newcomer(state.chosen);
      const found = timed(size, person);
      seen.set(place, { items: found.list.map(({ item }) => item), time: found.time });
    }
    if (sizes.has(state.place)) showSize(sizes.get(state.place), seen.get(state.place).time);
  }

  async function guarded(work) {
    try { await work(); } catch (error) { fail(error); }
  }

  function chooseUser(row) {
    $("user").value = users.ids[row];
    return someone({ mode: "user", row });
  }

  function suggest() {
    const typed = $("user").value.trim().toLowerCase();
    const fit = [];
    for (const id of users.ids) {
      if (id.toLowerCase().includes(typed)) fit.push(id);
      if (fit.length === SUGGESTIONS) break;
    }
    $("users").replaceChildren(...fit.map((id) => {
      const option = make("option");
      option.value = id;
      return option;
    }));
  }

  function offer() {
    const typed = $("search").value.trim().toLowerCase();
    const fit = [];
    for (const item of popular) {
      if (state.chosen.includes(item)) continue;
      if (typed && !title(item).toLowerCase().includes(typed) && !items.ids[item].toLowerCase().includes(typed)) continue;
      fit.push(item);
      if (fit.length === OFFERS) break;
    }
    const chip = (item, words, act) => {
      const line = make("li"), button = make("button", title(item));
      button.type = "button";
      button.dataset.item = items.ids[item];
      button.setAttribute("aria-label", `${words} ${title(item)}`);
      button.addEventListener("click", act);
      line.append(button);
      return line;
    };
    $("offers").replaceChildren(...fit.map((item) => chip(item, "Add", () => choose([...state.chosen, item]))));
    $("chosen").replaceChildren(...state.chosen.map((item) => chip(item, "Take back",
      () => choose(state.chosen.filter((one) => one !== item)))));
  }

  /* What a new user has; the list before is kept to show what a click changes. */
  function choose(chosen) {
    state.chosen = chosen;
    seen.clear();
    offer();
    return guarded(async () => { await show(); await fillSizes(); });
  }

  function turnTo(mode) {
    for (const name of ["user", "new"]) {
      const on = name === mode;
      $(`tab-${name}`).setAttribute("aria-selected", String(on));
      $(`tab-${name}`).tabIndex = on ? 0 : -1;
      $(`panel-${name}`).hidden = !on;
    }
    if (mode === "new") offer();
    return someone({ mode });
  }

  function listen() {
    $("user").addEventListener("input", () => {
      const row = users.ids.indexOf($("user").value.trim());
      if (row >= 0) someone({ mode: "user", row });
      else { suggest(); $("user-note").textContent = "No user of this page has that name yet."; }
    });
    $("user").addEventListener("focus", () => $("user").select());
    $("another").addEventListener("click", () => {
      const step = 1 + Math.floor(Math.random() * Math.max(1, users.ids.length - 1));
      chooseUser((state.row + step) % users.ids.length);
    });
    $("search").addEventListener("input", offer);
    $("size").addEventListener("input", () => {
      state.place = Number($("size").value);
      guarded(async () => { await show(); await fillSizes(); });
    });
    for (const mode of ["user", "new"]) {
      const tab = $(`tab-${mode}`);
      tab.addEventListener("click", () => turnTo(mode));
      tab.addEventListener("keydown", (event) => {
        if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
        const other = mode === "user" ? "new" : "user";
        turnTo(other);
        $(`tab-${other}`).focus();
      });
    }
  }

  /* Items from the most to the least bought, as far as the page knows. */
  function byPopularity(size) {
    const part = size.parts.find(({ name }) => name === about.sizes[0].weights.popular);
    const order = Array.from(items.ids.keys());
    return part ? order.sort((a, b) => part.items[b] - part.items[a] || a - b) : order;
  }

  async function start() {
    about = (await (await get("manifest.json")).json()).about;
    [users, items] = await Promise.all(["users.json", "items.json"].map(async (name) => (await get(name)).json()));
    const left = about.users.left_out;
    $("data").textContent = [
      about.data, plural(items.ids.length, "product", "products"),
      about.one_user ? users.ids[0] : plural(users.ids.length, "user", "users") + (left ? ` (${left.toLocaleString("en")} left out)` : ""),
    ].filter(Boolean).join(" · ");
    popular = byPopularity(await load(0));
    $("size").max = String(about.sizes.length - 1);
    $("size").disabled = about.sizes.length === 1;
    $("ticks").replaceChildren(...about.sizes.map(({ dim }) => make("span", String(dim))));
    if (about.one_user) { $("choice").hidden = true; $("tab-user").textContent = "You"; }
    $("all").open = matchMedia("(min-width: 52rem)").matches;
    suggest();
    listen();
    $("page").hidden = false;
    await chooseUser(0);
  }

  /* Keep the page for offline use, and offer a newer version of it once that is there. */
  async function keep() {
    const pill = $("offline"), worker = navigator.serviceWorker;
    if (!worker) {
      pill.title = "Offline use needs https or localhost.";
      throw new Error(pill.title);
    }
    const known = await worker.register("worker.js");
    const offerNewer = () => {
      if (!known.waiting || !known.active || $("newer")) return;
      const button = make("button", "newer version: reload", "pill");
      button.id = "newer";
      button.type = "button";
      button.addEventListener("click", () => {
        worker.addEventListener("controllerchange", () => location.reload());
        known.waiting.postMessage("take over");
      });
      pill.after(button);
    };
    offerNewer();
    known.addEventListener("updatefound", () => {
      known.installing.addEventListener("statechange", offerNewer);
    });
    await worker.ready;
    pill.textContent = "works offline";
    pill.classList.add("ready");
  }

  guarded(start);
  keep().catch(() => { $("offline").textContent = "online only"; });
})();
