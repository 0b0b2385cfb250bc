-- A client's request becomes one for each destination, or an error.
-- ARGV: taken, raw, empty if it was in no queue; bound of the backlog, of a queue, lifetime of answers, bound of remembered askers, and
-- for how many seconds after the expiry an asker is remembered; then for each destination
-- what: send, here or fail; uid, twin, ret, body (for fail the answer), tries, seconds left, the answer if there is no room, the body for the queue,
-- seconds for which this relay holds it, to send it at once, cmd. Says for each what became of it, and the token if it is held.
local taken, raw = ARGV[1], ARGV[2]
local backlog, most, lifetime = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
if taken ~= '' and not release(taken, raw) then return {} end
local said = {}
for i = 8, #ARGV, 11 do
  local what, uid, twin, ret, body, tries = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local deadline = now() + tonumber(ARGV[i + 6])
  count('requests')
  local full = redis.call('HLEN', P .. 'backlog') >= backlog or (what == 'here' and not has_room(P .. 'remote', most))
  if what == 'fail' then
    count('requests-refused')
    said[#said + 1] = { answer(ret, body, most, lifetime, true), '' }
  elseif full then
    count('requests-full')
    said[#said + 1] = { answer(ret, ARGV[i + 7], most, lifetime, true), '' }
  else
    local token = ''
    redis.call('HSET', P .. 'backlog', uid, body)
    redis.call('ZADD', R .. 'deadlines', stamp(deadline), uid)
    if what == 'here' then
      redis.call('ZADD', R .. 'open:' .. twin, stamp(deadline), uid)
      remember_asker(twin, uid, ARGV[i + 10], deadline, tonumber(ARGV[7]), tonumber(ARGV[6]))
      redis.call('RPUSH', P .. 'remote', ARGV[i + 8])
    else
      token = enqueue('q:' .. uid, twin, body, tries, deadline, tonumber(ARGV[i + 9]))
    end
    said[#said + 1] = { 'accepted', token }
  end
end
return said
