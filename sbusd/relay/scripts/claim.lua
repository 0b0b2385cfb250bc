-- Take up to ARGV[2] messages that are due at twin ARGV[1], for ARGV[3] seconds: a relay that has not said then what became of
-- one has died over it. Returns the seconds until the next is due, then for each: id, token, body, tries, attempts, seconds left.
local twin, most, seconds = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local waiting, sending = P .. 'retry:' .. twin, R .. 'sending:' .. twin
local time = now()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', sending, '-inf', stamp(time), 'LIMIT', 0, 100)) do
  redis.call('ZREM', sending, id)
  redis.call('ZADD', waiting, stamp(time), id)
  count('tries-abandoned')
end
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', stamp(time), 'LIMIT', 0, most)) do
  local message = R .. 'message:' .. id
  local had = redis.call('HMGET', message, 'body', 'tries', 'deadline')
  redis.call('ZREM', waiting, id)
  if had[3] then
    redis.call('ZADD', sending, stamp(time + seconds), id)
    local attempts = redis.call('HINCRBY', message, 'attempts', 1)
    -- The token is what is stored, to the digit: a later claim of the same message has another.
    local token = redis.call('ZSCORE', sending, id)
    table.insert(found, { id, token, had[1], had[2], tostring(attempts), stamp(tonumber(had[3]) - time) })
  end
end
local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or redis.call('ZRANGE', sending, 0, 0, 'WITHSCORES')[2]
if not first then redis.call('SREM', R .. 'twins', twin) end
return { first and stamp(tonumber(first) - time) or '-1', found }
