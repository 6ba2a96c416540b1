// What was refused, and why.

import { count, make } from "./words.js";

const section = document.querySelector("#dead");
const table = section.querySelector("table");
const MOST = 240;

export function showReasons(state) {
  const reasons = Object.entries(state.dead_by_reason).sort((a, b) => b[1] - a[1]);
  const since = reasons.map(([reason, number]) => `${count(number)} ${reason.replaceAll("_", " ")}`).join(", ");
  section.querySelector("#reasons").textContent = state.dead ? `${count(state.dead)} in all${since ? `; since the pipeline started: ${since}` : ""}` : "none";
}

export function showLetters(letters) {
  table.hidden = !letters.length;
  table.querySelector("tbody").replaceChildren(...letters.toReversed().map(row));
}

// Bytes that are no UTF-8 come in base64; what cannot be read in them is shown as a replacement character.
function textOf(letter) {
  if (letter.encoding !== "base64") return letter.raw;
  return new TextDecoder().decode(Uint8Array.from(atob(letter.raw), (sign) => sign.charCodeAt(0)));
}

function row(letter) {
  const whole = textOf(letter);
  const text = whole.length > MOST ? `${whole.slice(0, MOST)} …` : whole;
  return make(
    "tr", {},
    make("td", {}, letter.detail || letter.reason),
    make("td", {}, `${letter.partition}, ${letter.position}`),
    make("td", {}, text),
  );
}
