// Follows the server's stream and hands what is new to the parts of the page.

import * as ask from "./ask.js";
import { recallChart, timeChart } from "./charts.js";
import { showLetters, showReasons } from "./dead.js";
import * as door from "./door.js";
import * as map from "./map.js";
import { drawPath, showPath, showServed, summary } from "./path.js";

const MOST_RECALLS = 300;
const MAP_SECONDS = 30;
const find = (id) => document.getElementById(id);

const charts = [
  timeChart(find("loss-chart"), "loss", "model", false),
  timeChart(find("logq-chart"), "log_q_error", "index", true),
  timeChart(find("pop-chart"), "recommended", "popularity", true),
  timeChart(find("rate-chart"), "events_per_second", "served", true),
  timeChart(find("requests-chart"), "requests_per_second", "model", true),
  timeChart(find("age-chart"), "age", "popularity", true),
];
const showRecalls = recallChart(find("recall-chart"));

let points = { time: [] };
let recalls = new Map();
let mapAt = -Infinity;

function take(news) {
  if (news.whole) points = news.points;
  else append(news.points);
  if (news.recalls.length || news.whole) {
    for (const recall of news.recalls) recalls.set(recall.window, recall);
    recalls = new Map([...recalls].sort(([a], [b]) => a - b).slice(-MOST_RECALLS));
    showRecalls([...recalls.values()]);
  }
  charts.forEach((show) => show(points));
  ask.setRights(news.rights);
  map.setRights(news.rights);
  if (news.letters) showLetters(news.letters);
  if (news.state.time) showState(news.state);
}

function append(more) {
  for (const name of new Set([...Object.keys(points), ...Object.keys(more)])) {
    const before = points[name] ?? points.time.map(() => null);
    points[name] = [...before, ...(more[name] ?? more.time.map(() => null))];
  }
}

function showState(state) {
  find("summary").textContent = summary(state);
  find("recall-k").textContent = state.recall.k;
  say(find("problems"), state.problems.join("; "));
  say(find("held"), state.held ? `held: ${state.held.replace(/^held: /, "")}` : state.awaited || "");
  showPath(state);
  showServed(find("served"), state);
  showReasons(state);
  if (state.served) ask.askFirst();
  if (state.served && state.time - mapAt > MAP_SECONDS) {
    mapAt = state.time;
    map.load();
  }
}

function say(element, text) {
  element.textContent = text;
  element.hidden = !text;
}

function live(on) {
  const pill = find("live");
  pill.textContent = on ? "live" : "not connected";
  pill.className = `pill ${on ? "on" : "off"}`;
}

drawPath(find("path"));
ask.setUp(map.show);
map.setUp();
follow();

function follow() {
  const stream = new EventSource("/api/stream");
  stream.onopen = () => {
    recalls.clear();
    live(true);
  };
  stream.onerror = () => {
    live(false);
    if (stream.readyState === EventSource.CLOSED) door.ask(follow);
  };
  stream.onmessage = (event) => take(JSON.parse(event.data));
}
