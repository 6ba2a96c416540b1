// The path as a picture, and what is served.

import { age, count, make, seconds, share, short } from "./words.js";

const STAGES = [
  ["log", null], ["windows", "pipeline"], ["trainer", "trainer"], ["bundle", null], ["server", "serving"], ["monitor", "monitor"],
];
// Arrows between neighbours: which seconds they show, and what these mean.
const ARROWS = [
  ["window", "from the newest event of a window to its commit"],
  [null, ""],
  ["bundle", "from the commit to a bundle trained on it"],
  ["server", "from the bundle to its first answer"],
  ["query", "a query"],
];

const cells = new Map();
const arrows = new Map();

export function drawPath(list) {
  STAGES.forEach(([name], place) => {
    const value = make("div", { class: "value" }, "–");
    const note = make("div", { class: "note" });
    const cell = make("li", { class: "stage" }, make("div", { class: "name" }, name), value, note);
    cells.set(name, { cell, value, note });
    list.append(cell);
    if (place < ARROWS.length) {
      const [which, title] = ARROWS[place];
      const arrow = make("li", { class: "arrow", title }, "\u00a0");
      if (which) arrows.set(which, arrow);
      list.append(arrow);
    }
  });
}

function say(name, value, note, answering = true) {
  const { cell, value: first, note: second } = cells.get(name);
  first.textContent = value;
  second.textContent = answering ? note : "does not answer";
  cell.classList.toggle("quiet", !answering);
}

export function showPath(state) {
  const { served, answering, now } = state;
  say("log", `${short(now.events_per_second)}/s`, `${count(state.events)} events, ${count(state.dead)} dead`);
  say("windows", count(state.windows), `panes, ${count(state.duplicates)} duplicates, ${count(state.late)} late`, answering.pipeline);
  say("trainer", count(state.trained), `panes, loss ${short(now.loss)}`, answering.trainer);
  say("bundle", served ? `${count(served.items)}` : "none", served ? `items, ${served.dimension} dimensions` : "not yet");
  say("server", `${short(now.requests_per_second)}/s`, "queries", answering.serving);
  say("monitor", share(state.recall.model), `recall, popularity ${share(state.recall.popularity)}`, answering.monitor);
  for (const [which, arrow] of arrows) arrow.textContent = seconds(state.seconds[which]);
}

export function showServed(list, state) {
  const { served } = state;
  const rows = served
    ? [
        ["bundle", served.bundle],
        ["served for", age(state.time - served.since)],
        ["newest event", `${age(state.newest_event_age)} old`],
        ["items", `${count(served.items)}, ${served.dimension} dimensions`],
        ["index", served.index],
        ["trained on", `${count(served.trained)} of ${count(state.windows)} panes`],
        ["event to answer", seconds(state.seconds.total)],
        ...["model", "served", "index", "popularity"].map((kind) => [`recall, ${kind}`, share(state.recall[kind])]),
      ]
    : [["bundle", "none yet"]];
  list.replaceChildren(...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

export function summary(state) {
  const replay = state.replayed === null || state.replayed >= 1 ? "" : `, ${Math.floor(100 * state.replayed)} % of the replay done`;
  return state.served
    ? `an event is servable after ${seconds(state.seconds.total)}${replay}`
    : `waiting for the first bundle${replay}`;
}
