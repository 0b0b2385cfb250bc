-- The answer to a request, or the error that ends it, goes to the client that waits, if it still does.
-- ARGV: taken and raw, if a message is done with by this, else empty; uid, twin, answer, ret, bound, lifetime, outcome;
-- token of the try that failed, if one did; 1 if another host must have sent just this.
local taken, raw, uid, twin = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if taken ~= '' and not release(taken, raw) then return 'lost' end
if ARGV[10] ~= '' and redis.call('ZSCORE', R .. 'sending:' .. twin, 'q:' .. uid) ~= ARGV[10] then return 'lost' end
if ARGV[11] == '1' and redis.call('HEXISTS', P .. 'backlog', uid) == 1
    and redis.call('HGET', R .. 'vetted', uid) ~= redis.sha1hex(raw) then
  count('answers-forged')
  return 'forged'
end
local said = finish(uid, twin, ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9])
if said == 'late' then
  count(redis.call('EXISTS', R .. 'done:' .. uid) == 1 and 'answers-repeated' or 'answers-unasked')
end
return said
