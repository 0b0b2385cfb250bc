-- Push a request to the queue of its command. ARGV: taken, raw, queue, limit, twin that sent it, uid.
-- 'full': nothing has changed. 'late': the request has expired, or no host has sent it.
if not redis.call('LPOS', ARGV[1], ARGV[2]) then return 'lost' end
local deadline = redis.call('ZSCORE', R .. 'open:' .. ARGV[5], ARGV[6])
if not deadline or tonumber(deadline) < now() then
  release(ARGV[1], ARGV[2])
  count('requests-late')
  return 'late'
end
if not has_room(ARGV[3], tonumber(ARGV[4])) then return 'full' end
release(ARGV[1], ARGV[2])
redis.call('RPUSH', ARGV[3], ARGV[2])
count('requests-delivered')
return 'delivered'
