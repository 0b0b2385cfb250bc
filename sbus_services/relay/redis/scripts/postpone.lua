-- Record a failed attempt. ARGV: id, twin, token, seconds to wait, reason, and 1 if tries are limited.
-- 'exhausted': it was the last attempt; the message itself is unchanged.
local id, twin = ARGV[1], ARGV[2]
local message = R .. 'message:' .. id
redis.call('SADD', R .. 'peers', twin)
redis.call('HSET', R .. 'peer:' .. twin, 'failed', stamp(now()), 'reason', ARGV[5])
redis.call('HINCRBY', R .. 'peer:' .. twin, 'failing', 1)
count('tries-failed')
if redis.call('ZSCORE', R .. 'sending:' .. twin, id) ~= ARGV[3] then return 'lost' end
local due = now() + tonumber(ARGV[4])
if ARGV[6] == '1' then
  if tonumber(redis.call('HGET', message, 'tries')) <= 0 then return 'exhausted' end
  redis.call('HINCRBY', message, 'tries', -1)
elseif due > tonumber(redis.call('HGET', message, 'deadline')) then
  return 'exhausted'
end
redis.call('ZREM', R .. 'sending:' .. twin, id)
redis.call('ZADD', P .. 'retry:' .. twin, stamp(due), id)
redis.call('SADD', R .. 'twins', twin)
return 'postponed'
