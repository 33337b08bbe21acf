// ---- small helpers: elements, numbers, state

const SVG = 'http://www.w3.org/2000/svg';

/** An element with attributes, listeners (on...) and children; text is always text, never markup. */
function el(tag, attributes = {}, ...children) {
  const [name, space] = tag.startsWith('svg:') ? [tag.slice(4), SVG] : [tag, null];
  const made = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? '' : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A number for people: four digits. */
function shown(value) {
  if (value === null || value === undefined) return 'not finite';
  const size = Math.abs(value);
  if (value === 0) return '0';
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  if (Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(4)));
}

function duration(hours) {
  if (hours < 1 / 60) return `${Math.round(hours * 3600)} s`;
  if (hours < 2) return `${Math.round(hours * 60)} min`;
  return `${hours.toFixed(1)} h`;
}

/** Index of the last entry of a sorted list that is not above `value`; -1 before the first. */
function placeOf(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Index of the nearest entry of a sorted list. */
function nearest(sorted, value) {
  const place = placeOf(sorted, value);
  if (place < 0) return 0;
  if (place + 1 < sorted.length && sorted[place + 1] - value < value - sorted[place]) return place + 1;
  return place;
}

/** What a person has chosen; kept when the page of a running job is drawn again. */
const state = {
  hidden: new Set(),
  cursor: null,
  smooth: 0,
  axis: 'step',
  log: new Set(),
  open: new Set(),
  gallery: { run: 0, place: null, compare: false },
  film: { frame: null, playing: false },
  prompts: { run: 0, of: 'eval', sort: 'change', down: true, filter: '' },
};

let data = JSON.parse(document.getElementById('data').textContent);

const colour = (number) => `var(--c${number % 8})`;
const dash = (number) => [null, '6 3', '2 3', '8 3 2 3', '1 4', '12 4'][number % 6];
