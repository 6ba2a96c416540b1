// The query box, its answer, and clicks.

import { make, seconds } from "./words.js";

const section = document.querySelector("#ask");
const form = section.querySelector("form");
const table = section.querySelector("#answer");
const body = table.querySelector("tbody");
const note = section.querySelector("#answer-note");
const gone = section.querySelector("#gone");
const HINTS = { user: "a user id, as in the log", history: "item ids, oldest first, with commas between them", item: "an item id" };

let rights = { data: true, click: false };
let show = () => {};
let asked = null;
let first = new URLSearchParams(location.search).get("user");

export async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await problem(answer));
  return answer.json();
}

// What is wrong, of an answer that carries an error.
export async function problem(answer) {
  const text = await answer.text();
  try {
    return JSON.parse(text).message;
  } catch {
    return text;
  }
}

export function setRights(now) {
  rights = now;
  form.hidden = !now.data;
  section.querySelector(".closed").hidden = now.data;
}

export function setUp(showItem) {
  show = showItem;
  const hint = () => (form.what.placeholder = HINTS[form.kind.value]);
  form.kind.addEventListener("change", hint);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form.kind.value, form.what.value.trim(), form.seen.checked);
  });
  hint();
}

// What the address asks for, /?user=ann, once there is somebody to answer.
export function askFirst() {
  const user = first;
  first = null;
  if (!user || !rights.data || asked) return;
  form.what.value = user;
  ask("user", user, false);
}

async function ask(kind, what, exclude_seen) {
  asked = { kind, what, exclude_seen };
  const value = kind === "history" ? what.split(",").map((one) => one.trim()).filter(Boolean) : what;
  try {
    const answer = await post("/api/query", { [kind]: value, exclude_seen, k: 10 });
    fill(answer);
    say(answer, kind === "user" ? "" : `by ${kind}`);
  } catch (error) {
    fail(error);
  }
}

async function click(item) {
  const user = asked.what;
  note.textContent = `${user} → ${item}: waiting until it counts`;
  for (const button of body.querySelectorAll("button.click")) button.disabled = true;
  try {
    const answer = await post("/api/click", { user, item, k: 10 });
    fill(answer);
    const after = answer.seconds === null ? "the answer has not changed in time" : `the answer changed after ${seconds(answer.seconds)}`;
    say(answer, answer.same_bundle ? `${after}, by the click alone` : `${after}, and a newer bundle came`);
  } catch (error) {
    fail(error);
    for (const button of body.querySelectorAll("button.click")) button.disabled = false;
  }
}

function fail(error) {
  note.textContent = error.message;
  note.classList.add("problem");
}

function say(answer, first) {
  note.classList.remove("problem");
  const parts = [first, answer.fallback ? "unknown so far: these are the popular items" : "", answer.missing.length ? `unknown: ${answer.missing.join(", ")}` : ""];
  parts.push(`bundle ${answer.bundle}, ${answer.milliseconds.toFixed(1)} ms, of which the server ${answer.server_milliseconds.toFixed(1)} ms`);
  note.textContent = parts.filter(Boolean).join("; ");
}

function fill(answer) {
  const moved = answer.before !== undefined;
  const clicks = rights.click && asked.kind === "user";
  table.hidden = false;
  table.classList.toggle("still", !moved);
  body.replaceChildren(...answer.hits.map((hit) => row(hit, moved, clicks)));
  const left = moved ? answer.before.filter((item) => !answer.hits.some((hit) => hit.item === item)) : [];
  gone.textContent = left.length ? `no longer among them: ${left.join(", ")}` : "";
}

function row(hit, moved, clicks) {
  const [text, kind] = moved ? movement(hit) : ["", ""];
  const button = clicks ? make("button", { class: "click", type: "button", "aria-label": `click ${hit.item}`, onclick: () => click(hit.item) }, "click") : "";
  return make(
    "tr", {},
    make("td", { class: "number" }, hit.rank),
    make("td", {}, make("button", { class: "plain", type: "button", title: "show on the map", onclick: () => show(hit.item) }, hit.item), ...hit.tags.map((tag) => make("span", { class: "tag" }, tag))),
    make("td", { class: "number" }, hit.score.toFixed(4)),
    make("td", { class: "number" }, hit.popularity ?? "–"),
    make("td", { class: `moved ${kind}` }, text),
    make("td", { class: "act" }, button),
  );
}

function movement(hit) {
  if (!hit.before) return ["new", "new"];
  const by = hit.before - hit.rank;
  return by > 0 ? [`↑ ${by}`, "up"] : by < 0 ? [`↓ ${-by}`, "down"] : ["=", ""];
}
