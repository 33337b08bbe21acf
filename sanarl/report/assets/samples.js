// ---- the same prompts over the steps

/** A choice between runs; nothing where there is one. */
function runChoice(name, runs, value, choose) {
  if (runs.length < 2) return null;
  return el('label', {}, 'Run ', el('select', { id: `${name}-run`, onchange: (event) => choose(Number(event.target.value)) },
    ...runs.map((r) => el('option', { value: r, selected: r === value }, data.runs[r].name))));
}

/** A picture; of clips the frames lie side by side in it, and the one that `showFrame` names is seen. */
function picture(source, text, clips) {
  if (!source) return el('div', { class: 'missing' }, 'no picture');
  const image = el('img', { src: source, alt: text, decoding: 'async' });
  return clips ? el('div', { class: 'clip' }, image) : image;
}

function samplesSection() {
  const runs = data.runs.map((_, r) => r).filter((r) => data.runs[r].gallery);
  const section = el('section', { id: 'samples' }, el('h2', {}, 'Samples'));
  if (!runs.length) {
    section.append(el('p', {}, 'No samples of held-out prompts: validation was off, or has not run yet.'));
    return section;
  }
  const chosen = state.gallery;
  if (!runs.includes(chosen.run)) chosen.run = runs[0];
  const { gallery, sheets } = data.runs[chosen.run];
  const last = gallery.steps.length - 1;
  if (chosen.place === null || chosen.place > last) chosen.place = last;
  const grid = el('div', { class: 'samples' });
  const label = el('output', { for: 'scrub', id: 'scrub-step' });
  const slider = el('input', {
    type: 'range', id: 'scrub', min: 0, max: last, step: 1, value: chosen.place, 'aria-label': 'Step of the samples',
    oninput: () => {
      chosen.place = Number(slider.value);
      fill();
    },
  });
  const go = (by) => {
    slider.value = Math.min(Math.max(chosen.place + by, 0), last);
    slider.dispatchEvent(new Event('input'));
  };
  const cells = gallery.prompts.map((prompt, p) => {
    const cell = { frames: el('div', { class: 'frames' }), reward: el('span', { class: 'reward' }) };
    cell.node = el('figure', {},
      el('button', { type: 'button', class: 'look', title: 'All steps of this prompt', onclick: () => filmstrip(chosen.run, p) }, cell.frames),
      el('figcaption', {}, el('span', { class: 'prompt' }, prompt), cell.reward));
    grid.append(cell.node);
    return cell;
  });
  const fill = () => {
    const step = gallery.steps[chosen.place];
    label.textContent = step === 0 ? 'before training' : `step ${step}`;
    slider.setAttribute('aria-valuetext', label.textContent);
    grid.classList.toggle('compared', chosen.compare);
    cells.forEach((cell, p) => {
      const now = picture(gallery.pictures[chosen.place][p], `${gallery.prompts[p]}, ${label.textContent}`, gallery.clips);
      const parts = chosen.compare && chosen.place > 0 ? [picture(gallery.pictures[0][p], `${gallery.prompts[p]}, step ${gallery.steps[0]}`, gallery.clips), now] : [now];
      cell.frames.replaceChildren(...parts);
      const rewards = [chosen.compare ? gallery.rewards[0][p] : null, gallery.rewards[chosen.place][p]].filter((value) => value !== null);
      cell.reward.textContent = rewards.map((value) => shown(Number(value.toPrecision(3)))).join(' → ');
    });
  };
  section.append(el('p', { class: 'controls' },
    runChoice('samples', runs, chosen.run, (r) => {
      Object.assign(chosen, { run: r, place: null });
      redraw('samples', samplesSection);
    }),
    el('button', { type: 'button', 'aria-label': 'Earlier', onclick: () => go(-1) }, '‹'), slider,
    el('button', { type: 'button', 'aria-label': 'Later', onclick: () => go(1) }, '›'), label,
    el('label', {}, el('input', { type: 'checkbox', id: 'compare', checked: chosen.compare, onchange: (event) => {
      chosen.compare = event.target.checked;
      fill();
    } }), ' beside the first'),
  ), gallery.clips ? player(gallery.clips) : '', el('p', { class: 'means' }, 'The same prompts from the same noise at every step', moreSamples(gallery)), grid);
  if (sheets.length) section.append(sheetsOf(sheets));
  fill();
  return section;
}

function moreSamples({ left_out: [steps, prompts] }) {
  const parts = [steps && `${steps} more evaluations`, prompts && `${prompts} more prompts`].filter(Boolean);
  return parts.length ? `; ${parts.join(' and ')} are in the run's folder.` : '.';
}

/** Every step of one prompt, in a dialog. */
function filmstrip(r, p) {
  const { gallery, name } = data.runs[r];
  const dialog = el('dialog', { 'aria-label': gallery.prompts[p], onclose: () => dialog.remove() },
    el('form', { method: 'dialog' }, el('h3', {}, gallery.prompts[p]), el('button', { autofocus: true }, 'Close')),
    el('p', { class: 'means' }, name),
    gallery.clips ? player(gallery.clips) : '',
    el('div', { class: 'samples' }, ...gallery.steps.map((step, s) => el('figure', {}, el('div', { class: 'frames' }, picture(gallery.pictures[s][p], `step ${step}`, gallery.clips)),
      el('figcaption', {}, el('span', { class: 'prompt' }, `step ${step}`), el('span', { class: 'reward' }, gallery.rewards[s][p] === null ? '' : shown(gallery.rewards[s][p])))))));
  document.body.append(dialog);
  dialog.showModal();
}

function sheetsOf(sheets) {
  return el('details', { id: 'sheets', open: state.open.has('sheets'), ontoggle: (event) => remember('sheets', event) },
    el('summary', {}, 'Groups of rollouts'),
    el('p', { class: 'means' }, 'The first group of a rollout with its rewards: what the advantage is computed from.'),
    ...sheets.map(({ step, picture: source }) => el('figure', { class: 'sheet' }, el('figcaption', {}, `step ${step}`), picture(source, `samples of a group, step ${step}`, null))));
}

function remember(key, event) {
  if (event.target.open) state.open.add(key);
  else state.open.delete(key);
}
