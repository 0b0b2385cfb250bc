-- Claim up to ARGV[2] due messages for twin ARGV[1] for ARGV[3] seconds. Messages whose claims have expired are due again.
-- Returns the seconds until the next message is due, then for each claimed one: id, token, body, tries, attempt.
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
  local had = redis.call('HMGET', message, 'body', 'tries')
  redis.call('ZREM', waiting, id)
  if had[1] then
    local token, attempt = hold(id, twin, seconds)
    table.insert(found, { id, token, had[1], had[2], tostring(attempt) })
  end
end
local first = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2] or redis.call('ZRANGE', sending, 0, 0, 'WITHSCORES')[2]
if not first then redis.call('SREM', R .. 'twins', twin) end
return { first and stamp(tonumber(first) - time) or '-1', found }
