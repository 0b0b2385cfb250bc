-- Stands before each script. Time is that of Redis: several relays, with clocks of their own, may share it.
local P = 'msgbus.system.'
local R = P .. 'relay.'

local function now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local function stamp(seconds)
  return string.format('%.6f', seconds)
end

local function count(name, n)
  redis.call('HINCRBY', R .. 'counters', name, n or 1)
end

-- A queue that a client named may be a key of another type: then nothing can be put there.
local function has_room(queue, most)
  local kind = redis.call('TYPE', queue).ok
  return kind == 'none' or (kind == 'list' and redis.call('LLEN', queue) < most)
end

-- Take the message out of the list of the relay that works on it. False: another relay has taken over.
local function release(taken, raw)
  return redis.call('LREM', taken, 1, raw) == 1
end

-- 'answered', or why the client did not get it. Nothing below msgbus. is a client's own queue; what a relay has for the calls of
-- its bus is named by relays alone: then ours is true.
local function answer(ret, body, most, lifetime, ours)
  if ret == '' then
    count('answers-unwanted')
    return 'unwanted'
  end
  local relay = ours and string.match(ret, '^msgbus%.system%.relay%.answers:(%x+)$')
  if relay then
    -- A relay that has died took the calls of its bus with it. One that lives takes them out, and no more come than the backlog holds.
    if redis.call('EXISTS', R .. 'lease:' .. relay) == 0 then
      count('answers-orphaned')
      return 'unwanted'
    end
    redis.call('RPUSH', ret, body)
    return 'answered'
  end
  if string.sub(ret, 1, 7) == 'msgbus.' or not has_room(ret, most) then
    count('answers-undeliverable')
    return 'undeliverable'
  end
  redis.call('RPUSH', ret, body)
  redis.call('EXPIRE', ret, lifetime)
  return 'answered'
end

-- What a message was signed with, empty if with nothing, is good once.
local function is_new(nonce, seconds)
  return nonce == '' or redis.call('SET', nonce, '1', 'NX', 'EX', seconds)
end

local function forget(id, twin)
  local waiting, sending = P .. 'retry:' .. twin, R .. 'sending:' .. twin
  redis.call('ZREM', waiting, id)
  redis.call('ZREM', sending, id)
  redis.call('DEL', R .. 'message:' .. id)
  if redis.call('EXISTS', waiting, sending) == 0 then redis.call('SREM', R .. 'twins', twin) end
end

-- A relay sends the message, for so many seconds: one that has not said then what became of it has died over it. Returns the token,
-- which is what is stored, to the digit: a later hold of the same message has another. And the number of the attempt.
local function hold(id, twin, seconds)
  redis.call('ZADD', R .. 'sending:' .. twin, stamp(now() + seconds), id)
  local attempt = redis.call('HINCRBY', R .. 'message:' .. id, 'attempts', 1)
  return redis.call('ZSCORE', R .. 'sending:' .. twin, id), attempt
end

-- The message is to be sent: by this relay, which holds it for so many seconds and gets the token, or, if they are 0, by any.
local function enqueue(id, twin, body, tries, deadline, seconds)
  redis.call('HSET', R .. 'message:' .. id, 'body', body, 'tries', tries, 'attempts', 0, 'deadline', stamp(deadline))
  redis.call('SADD', R .. 'twins', twin)
  if seconds > 0 then return (hold(id, twin, seconds)) end
  redis.call('ZADD', P .. 'retry:' .. twin, stamp(now()), id)
  return ''
end

-- The requests that this host was asked and that no application has answered, for a number of seconds after they expire: an error that
-- does not name its asker may come late, and must not go to another asker of the same uid. At most so many for each twin: then the first
-- to be forgotten is forgotten early, and until its time nobody's errors are redirected.
local function remember_asker(twin, uid, cmd, deadline, seconds, most)
  local asked, commands, time = R .. 'asked:' .. twin, R .. 'asked-commands:' .. twin, now()
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', asked, '-inf', stamp(time), 'LIMIT', 0, 100)) do
    redis.call('ZREM', asked, old)
    redis.call('HDEL', commands, old)
  end
  -- A uid that is used again names no one request: no command is empty.
  if redis.call('HEXISTS', commands, uid) == 1 then cmd = '' end
  if redis.call('ZCARD', asked) >= most then
    local first = redis.call('ZPOPMIN', asked)
    redis.call('HDEL', commands, first[1])
    local left = math.ceil(tonumber(first[2]) - time)
    if left > redis.call('TTL', R .. 'askers-forgotten') then redis.call('SET', R .. 'askers-forgotten', '1', 'EX', left) end
    count('askers-forgotten')
  end
  local known = redis.call('ZSCORE', asked, uid)
  local till = math.max(deadline + seconds, tonumber(known or '0'))
  redis.call('ZADD', asked, stamp(till), uid)
  redis.call('HSET', commands, uid, cmd)
  redis.call('SADD', R .. 'askers', twin)
  for _, key in ipairs({ asked, commands }) do
    redis.call('EXPIREAT', key, math.ceil(till) + 60, redis.call('TTL', key) < 0 and 'NX' or 'GT')
  end
end

-- The application has answered, unless the uid was used more than once: then another request may have no answer yet.
local function forget_asker(twin, uid)
  local asked, commands = R .. 'asked:' .. twin, R .. 'asked-commands:' .. twin
  if redis.call('HGET', commands, uid) == '' then return end
  redis.call('ZREM', asked, uid)
  redis.call('HDEL', commands, uid)
  if redis.call('EXISTS', asked, R .. 'open:' .. twin) == 0 then redis.call('SREM', R .. 'askers', twin) end
end

-- What ends a request: its place in the backlog is free exactly once, so it gets exactly one answer.
local function finish(uid, twin, body, ret, most, lifetime, outcome)
  if redis.call('HDEL', P .. 'backlog', uid) == 0 then
    return 'late'
  end
  local deadline = tonumber(redis.call('ZSCORE', R .. 'deadlines', uid) or '0')
  redis.call('ZREM', R .. 'deadlines', uid)
  redis.call('ZREM', R .. 'open:' .. twin, uid)
  if outcome ~= 'expired' then forget_asker(twin, uid) end
  redis.call('HDEL', R .. 'vetted', uid)
  forget('q:' .. uid, twin)
  -- Copies of an answer may come for as long as the request could live, and a minute more for what is under way.
  redis.call('SET', R .. 'done:' .. uid, outcome, 'EX', math.max(60, math.ceil(deadline - now()) + 60))
  count('requests-' .. outcome)
  return answer(ret, body, most, lifetime, true)
end
