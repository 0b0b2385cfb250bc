-- Precedes each script. Uses the time of Redis, because relays with different clocks may share it.
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

-- A client may name a key of another type as its queue: it has no room.
local function has_room(queue, most)
  local kind = redis.call('TYPE', queue).ok
  return kind == 'none' or (kind == 'list' and redis.call('LLEN', queue) < most)
end

-- Remove the message from the list of the relay that processes it. False: another relay has taken it over.
local function release(taken, raw)
  return redis.call('LREM', taken, 1, raw) == 1
end

-- Returns 'answered', or why the response was not delivered. Names that begin with msgbus. are not clients' queues. The list for bus calls
-- of a relay is accepted only if ours is true, because only relays may name it.
local function answer(ret, body, most, lifetime, ours)
  if ret == '' then
    count('answers-unwanted')
    return 'unwanted'
  end
  local relay = ours and string.match(ret, '^msgbus%.system%.relay%.answers:(%x+)$')
  if relay then
    -- The bus calls of a relay that another one has found dead have ended. Without a lease it may only be paused: then it takes the
    -- response when it goes on. A live relay empties the list, whose length the backlog limits; of a dead one, the next relay does.
    if redis.call('SISMEMBER', R .. 'relays', relay) == 0 then
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

-- A nonce is valid once; it is empty for unsigned messages.
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

-- Claim the message for this relay for a number of seconds; without a result by then the relay counts as dead. Returns the token, which is
-- the stored expiry time, to the digit, and differs for each claim of a message, and the number of the attempt.
local function hold(id, twin, seconds)
  redis.call('ZADD', R .. 'sending:' .. twin, stamp(now() + seconds), id)
  local attempt = redis.call('HINCRBY', R .. 'message:' .. id, 'attempts', 1)
  return redis.call('ZSCORE', R .. 'sending:' .. twin, id), attempt
end

-- Store a message to be sent. If seconds is not 0, this relay claims it for that time and gets the token.
local function enqueue(id, twin, body, tries, deadline, seconds)
  redis.call('HSET', R .. 'message:' .. id, 'body', body, 'tries', tries, 'attempts', 0, 'deadline', stamp(deadline))
  redis.call('SADD', R .. 'twins', twin)
  if seconds > 0 then return (hold(id, twin, seconds)) end
  redis.call('ZADD', P .. 'retry:' .. twin, stamp(now()), id)
  return ''
end

-- Remember an unanswered request of a host for some seconds after its expiry: an error that does not name its destination may come late,
-- and must not go to another host with the same uid. At most most requests of each host are remembered. Beyond that, the one that expires
-- first is forgotten early, and until its time no errors are redirected.
local function remember_asker(twin, uid, cmd, deadline, seconds, most)
  local asked, commands, time = R .. 'asked:' .. twin, R .. 'asked-commands:' .. twin, now()
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', asked, '-inf', stamp(time), 'LIMIT', 0, 100)) do
    redis.call('ZREM', asked, old)
    redis.call('HDEL', commands, old)
  end
  -- A repeated uid is ambiguous. Mark it with an empty command, which no request has.
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

-- Forget an answered request, unless its uid was used more than once: another request may be unanswered.
local function forget_asker(twin, uid)
  local asked, commands = R .. 'asked:' .. twin, R .. 'asked-commands:' .. twin
  if redis.call('HGET', commands, uid) == '' then return end
  redis.call('ZREM', asked, uid)
  redis.call('HDEL', commands, uid)
  if redis.call('EXISTS', asked, R .. 'open:' .. twin) == 0 then redis.call('SREM', R .. 'askers', twin) end
end

-- End a request. It is removed from the backlog exactly once, so it gets exactly one response.
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
  -- Duplicate responses may arrive during the lifetime of the request, and for a minute more.
  redis.call('SET', R .. 'done:' .. uid, outcome, 'EX', math.max(60, math.ceil(deadline - now()) + 60))
  count('requests-' .. outcome)
  return answer(ret, body, most, lifetime, true)
end
