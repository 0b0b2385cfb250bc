/** Hints about patterns that are probably mistakes: wildcards of other protocols, and wildcards at a wrong place. */

const SHOWN_CHARACTERS = 128;

/** Emit a warning for each pattern that is probably a mistake. */
export function warnOfMistakes(patterns) {
  for (const words of patterns.map(hint).filter(Boolean)) {
    process.emitWarning(words, 'PatternWarning');
  }
}

/** Return what is probably wrong with a pattern, and how it is written here; null if nothing is. */
export function hint(pattern) {
  if (!pattern.includes('/') && (/\.[>*]$/.test(pattern) || pattern.includes('.*.'))) {
    return instead(pattern, 'NATS', pattern.replaceAll('.', '/').replace(/>$/, ''));
  }
  if (canNeverMatch(pattern)) {
    return `${cut(pattern)} can never match: "*" matches the rest of its segment, so it must be the end of the segment`;
  }
  const segments = pattern.split('/');
  if (segments.at(-1) === '#') {
    return instead(pattern, 'MQTT', pattern.slice(0, -1));
  }
  if (segments.includes('+')) {
    return instead(pattern, 'MQTT', segments.map((each) => (each === '+' ? '*' : each)).join('/'));
  }
  if (segments.at(-1) === '>') {
    return instead(pattern, 'NATS', pattern.slice(0, -1));
  }
  return null;
}

function instead(pattern, protocol, right) {
  let here = 'matches only itself here';
  if (canNeverMatch(pattern)) {
    here = 'can never match here';
  } else if (pattern.includes('*')) {
    here = `matches keys such as ${cut(pattern.replaceAll('*', 'x'))} here`;
  }
  return `${cut(pattern)} looks like a pattern of ${protocol}, and ${here}; write ${cut(right)}`;
}

/** Return whether a `*` is not at the end of its segment. */
function canNeverMatch(pattern) {
  return /\*[^*/]/.test(pattern);
}

/** Return a pattern for a hint, cut if it is long; not inside a character. */
function cut(pattern) {
  const characters = [...pattern];
  return JSON.stringify(characters.length > SHOWN_CHARACTERS ? `${characters.slice(0, SHOWN_CHARACTERS).join('')}…` : pattern);
}
