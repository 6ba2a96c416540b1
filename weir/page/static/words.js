// Numbers and ages as people say them.

const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60]];

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return value < 120 ? `${value.toFixed(1)} s` : age(value);
}

export function age(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, length] of UNITS) {
    if (value >= 2 * length) return `${Math.floor(value / length)} ${unit}s`;
  }
  return `${Math.max(0, Math.round(value))} s`;
}

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function share(value) {
  return value === null || value === undefined ? "–" : value.toFixed(3);
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size >= 100 ? count(value) : size >= 1 ? value.toFixed(2) : value.toPrecision(2);
}

// An element with attributes and children; text is never read as HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}
