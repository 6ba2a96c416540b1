// The items in two dimensions; one item's neighbours light up.

import { post } from "./ask.js";
import { make } from "./words.js";

const section = document.querySelector("#map");
const canvas = section.querySelector("canvas");
const note = section.querySelector("#map-note");
const legend = section.querySelector("#families");
const form = section.querySelector("form");
const NEAR = 14;

let map = null;
let lit = null; // { item, neighbours }
let places = [];
let rights = { data: true };
const dark = matchMedia("(prefers-color-scheme: dark)");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function setRights(now) {
  rights = now;
  form.hidden = !now.data;
}

export async function load() {
  const answer = await fetch("/api/map");
  if (!answer.ok) return;
  const found = await answer.json();
  if (!found || found.version === map?.version) return;
  map = found;
  document.querySelector("#known-items").replaceChildren(...map.ids.slice(0, 200).map((item) => make("option", { value: item })));
  legend.replaceChildren(...map.families.map((name, number) => make("li", {}, dot(number), name)));
  if (!lit) describe();
  draw();
}

function dot(family) {
  const mark = make("i");
  mark.style.background = tone(family);
  return mark;
}

function describe() {
  note.textContent = `the ${map.ids.length} most popular items; the plane shows ${Math.round(100 * map.shown)} % of their variance`;
}

// Neighbouring numbers get hues far from each other, by the golden angle.
const tone = (family) => `hsl(${(205 + 137.5 * (family ?? 0)) % 360} ${dark.matches ? "65% 62%" : "65% 42%"})`;

function draw() {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!map || !width) return;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  places = map.ids.map((_, at) => [spread(map.x[at], width), spread(map.y[at], height)]);
  const rows = new Map(map.ids.map((item, at) => [item, at]));
  const near = new Set((lit?.neighbours ?? []).map((item) => rows.get(item)));
  const chosen = lit ? rows.get(lit.item) : undefined;
  // The most popular ones are drawn last, and larger.
  for (let at = map.ids.length - 1; at >= 0; at -= 1) {
    if (near.has(at) || at === chosen) continue;
    pen.globalAlpha = lit ? 0.22 : 0.7;
    spot(pen, places[at], 1.6 + 3 / Math.sqrt(1 + at / 20), tone(map.family[at]));
  }
  pen.globalAlpha = 1;
  light(pen, chosen, near);
}

function light(pen, chosen, near) {
  const glow = css("glow");
  if (chosen !== undefined) {
    pen.strokeStyle = glow;
    pen.globalAlpha = 0.35;
    for (const at of near) {
      if (at === undefined) continue;
      pen.beginPath();
      pen.moveTo(...places[chosen]);
      pen.lineTo(...places[at]);
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }
  for (const at of near) if (at !== undefined) spot(pen, places[at], 4.5, glow);
  if (chosen === undefined) return;
  spot(pen, places[chosen], 7, css("ink"));
  spot(pen, places[chosen], 5, glow);
  pen.fillStyle = css("ink");
  pen.font = "600 12px system-ui, sans-serif";
  const [x, y] = places[chosen];
  const right = x < canvas.clientWidth / 2;
  pen.textAlign = right ? "left" : "right";
  pen.strokeStyle = css("card");
  pen.lineWidth = 4;
  pen.lineJoin = "round";
  for (const write of ["strokeText", "fillText"]) pen[write](map.ids[chosen], x + (right ? 11 : -11), y + 4);
}

function spot(pen, [x, y], radius, fill) {
  pen.fillStyle = fill;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
}

const spread = (value, size) => 12 + (Math.max(-1.15, Math.min(1.15, value)) / 1.15 + 1) / 2 * (size - 24);

function nearest(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  let best = null;
  let least = NEAR ** 2;
  places.forEach(([px, py], at) => {
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least) [best, least] = [at, distance];
  });
  return best;
}

export async function show(item) {
  if (!rights.data || !item) return;
  form.item.value = item;
  try {
    const answer = await post("/api/query", { item, k: 20 });
    lit = { item, neighbours: answer.fallback ? [] : answer.hits.map((hit) => hit.item) };
    note.textContent = answer.fallback ? `${item} is unknown to the bundle` : `near ${item}: ${lit.neighbours.slice(0, 8).join(", ")} …`;
  } catch (error) {
    note.textContent = error.message;
  }
  draw();
}

export function setUp() {
  canvas.addEventListener("pointermove", (event) => {
    const at = nearest(event);
    canvas.title = at === null ? "" : `${map.ids[at]}, rank ${at + 1} by popularity`;
  });
  canvas.addEventListener("click", (event) => {
    const at = nearest(event);
    if (at !== null) return show(map.ids[at]);
    lit = null;
    if (map) describe();
    return draw();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show(form.item.value.trim());
  });
  dark.addEventListener("change", () => {
    if (map) legend.replaceChildren(...map.families.map((name, number) => make("li", {}, dot(number), name)));
    draw();
  });
  new ResizeObserver(draw).observe(canvas);
}
