// ---- clips: all of the page show the same frame, by hand or in time

let timer = null;

/** Show a frame of every clip, and say so beside every player. */
function showFrame(frame, frames) {
  state.film.frame = frame;
  document.documentElement.style.setProperty('--frame', frame);
  for (const slider of document.querySelectorAll('.player input')) {
    slider.value = frame;
    slider.setAttribute('aria-valuetext', `frame ${frame + 1} of ${frames}`);
    slider.nextElementSibling.textContent = `frame ${frame + 1} of ${frames}`;
  }
}

/** Move all clips in time, or stop them where they are. */
function play(clips, playing) {
  clearInterval(timer);
  state.film.playing = playing;
  if (playing) timer = setInterval(() => showFrame((state.film.frame + 1) % clips.frames, clips.frames), (1000 * (clips.seconds || 1)) / clips.frames);
  for (const button of document.querySelectorAll('.player button')) button.textContent = playing ? 'Pause' : 'Play';
}

/** A button and a slider over the frames, for all clips together; at first their middle is seen. */
function player(clips) {
  const { frames, seconds } = clips;
  if (state.film.frame === null) state.film.frame = frames >> 1;
  document.documentElement.style.setProperty('--frames', frames);
  document.documentElement.style.setProperty('--frame', state.film.frame);
  const said = `frame ${state.film.frame + 1} of ${frames}`;
  const slider = el('input', {
    type: 'range', min: 0, max: frames - 1, step: 1, value: state.film.frame, 'aria-label': 'Frame of the clips', 'aria-valuetext': said,
    oninput: () => {
      play(clips, false);
      showFrame(Number(slider.value), frames);
    },
  });
  return el('p', { class: 'controls player' },
    el('button', { type: 'button', onclick: () => play(clips, !state.film.playing) }, state.film.playing ? 'Pause' : 'Play'),
    slider, el('output', { class: 'frame' }, said),
    el('span', { class: 'means' }, seconds ? `of ${shown(seconds)} s` : null));
}
