"""Hand-written tables of English for the noise: common misspellings, wrong forms, confusable words."""

from __future__ import annotations

_MISSPELLED = """
because:becouse,becuase,beacuse,becaus,becase,beause,becasue their:thier,ther believe:beleive,belive,belive
receive:recieve received:recieved government:goverment,governement
environment:enviroment,environement,envirnment different:diffrent,differnt,diferent,diffrerent
important:importent,improtant,imporatant,inportant knowledge:knowlege,knowladge,knowledg
technology:tecnology,techology,technologie science:sience,scince,sciense
people:pepole,peaple,poeple,pepel,peple studying:studing,studiing writing:writting coming:comming
which:wich,whitch with:whith,wiht,wit,whit the:teh,hte,th and:adn,nad always:allways,alwyas,alway
until:untill useful:usefull,usful successful:succesful,sucessful,succesfull,successfull
success:sucess,succes experience:experiance,expirience,experince example:exemple,exsample,exampel,exampl
advertisement:advertisment,advertisement,advertisemet advertisements:advertisments,advertisemets
advertising:advertisng,advertizing opportunity:oportunity,opportunitiy possible:posible,possibel
probably:probaly,probabley really:realy,realli finally:finaly especially:especialy,espesially
definitely:definately,definitly separate:seperate tomorrow:tommorow,tomorow beginning:begining
business:bussiness,buisness interesting:intresting,interisting,interessting interested:intrested,interrested
language:languge,langauge necessary:necesary,neccessary,neccesary occasion:ocasion occurred:occured
preferred:prefered professor:profesor professional:proffesional,profesional truly:truely
thought:tought,thougt,thougth through:throught,thru,throgh opinion:oppinion,opinon,openion agree:agre,agreee
disagree:disagre statement:statment,statemant reason:reson,reasone reasons:resons,reasones except:exept
excellent:excelent friend:freind,frend friends:freinds,frends family:familly,famly
happiness:happyness,hapiness healthy:healty happen:hapen,happend happened:happend,hapened enjoy:injoy,enjoi
know:knwo,konw learn:lern,learnd learning:learnig,lerning making:makeing taking:takeing having:haveing
using:useing driving:driveing money:moeny,mony,monney nowadays:nowdays,nowadys,nowaday,now-a-days
often:offen,oftne other:ohter,oter,othr others:othes,ohters parents:parants,perents,parrents
problem:probem,problam,proplem,probleme problems:probems,problams resources:resorces,ressources
should:shoud,shold,shuld would:woud,wold,whould could:coud,cuold,culd stopped:stoped still:stil
student:studant,studen students:studants,studens,stundents teacher:teatcher,techer
teachers:teatchers,techers tried:tryed studied:studyed vehicle:vehical whether:wheter,wether work:wrok
world:wrold,worl,wolrd years:yeras,yers young:yong,yuong,youg though:thogh,tho although:althought,altough
therefore:therfore,therefor however:howerver,howevere beautiful:beatiful,beautifull,beutiful
develop:develope,devlop development:developement,developpment developed:developped,devoloped
different:differents history:histroy immediately:immediatly information:informations,infomation,imformation
society:sociaty,socity specific:spesific subject:subjet subjects:subjets successfully:succesfully
concept:consept concepts:consepts facts:fackts ideas:ideias,idias understand:understend,undestand,understant
understanding:undestanding children:childrens,childern,chilren child:chield products:produts,productes
product:produt community:comunity,communtiy communities:comunities communicate:comunicate
country:contry,coutry countries:contries university:univercity,universty college:colledge grow:growe
interest:intrest easier:easyer,easer easy:eazy,esay everything:everthing,everythink
something:somthing,somethink someone:somone anything:anythink nothing:nothink without:whitout,withou
travel:travle,trable traveling:travling trip:tripe car:carr cars:carrs choose:chose,choise
choice:choise,chose difficult:dificult,difficulte,diffcult difference:diference,diffrence life:lif,lifes
live:leave,liv living:liveing,leaving quality:qualtiy,quallity question:qestion,quetion
responsibility:responsability responsible:responsable sometimes:sometime,somtimes,some-times
special:spetial,speciel specialized:spesialized specialize:spesialize academic:accademic,academical
broad:brod knew:new new:knew know:now than:then who:how where:were were:where try:tray many:meny,manny
much:mutch very:verry,vary about:abaut,abuot after:affter again:agian,againe also:aslo,allso
another:anather,anoter around:arround before:befor,befour better:beter,bether between:beetween,betwen
both:bouth can:cann change:chang,chage could:cloud day:dey does:dose each:eache even:evan ever:evere
every:evry,evrey example:examble far:fare fast:fest find:fined first:frist,fist food:foot found:fond
free:fre from:form,fron future:futur,feature get:gat give:gif good:goog,gud great:grate group:groupe
have:heve,hav health:helth here:hear high:hight hope:hop hours:houres house:hose idea:ideea,idear job:jop
just:jus keep:kep kind:kinde last:las later:latter least:lest less:les like:lick,lik little:litle,littel
long:lon look:lok made:maid make:mak,meke mean:meen means:meens might:migth more:mor most:mots,moust
mother:mather must:most need:ned never:nevr next:nex night:nigth now:know number:nummber old:hold
only:onle,olny own:owne part:parte person:persone,preson place:plase play:paly point:poit public:publique
put:putt quickly:quikly rather:rader reach:rech read:red real:reel right:rigth,write same:sam,seme say:sai
school:shcool,scool,schoole second:secound see:se seems:seams several:severals short:shor since:sinse
small:smal social:soical some:som,sume soon:son start:strat state:stat strong:stronge such:soch,sutch
sure:shure,shore system:sistem take:teke teach:teache,tech tell:tel that:taht,thet,tath them:tham,thme
then:than there:their,ther these:thes,theese they:thay,thy thing:thinge,think things:thinks,thigs
think:thing,thik this:thes,tihs those:thoes three:tree time:tim,tiem today:tody,todey
together:togheter,togather too:to took:toke true:thru two:tow under:onder use:us used:uesd
usually:usally,usualy,ussually want:wont wanted:wonted water:watter way:wey well:wel went:whent
what:waht,wath when:wen,whene where:wher while:wile,whil white:withe whole:hole why:way will:well,wil
within:whitin woman:women word:wrod words:wordes works:workes write:wright year:yaer yes:yees you:yuo
your:you're,youre attention:atention attitude:atitude available:avaliable average:avarage balance:balence
certain:certian,certin character:caracter company:compagny,compny companies:companys,compagnies
competition:compitition complete:compleet completely:completly,compleatly conclusion:conclution
consider:concider considered:concidered continue:countinue control:controll convenient:convinient
course:cours culture:cultur customer:costumer customers:costumers danger:dangeer
dangerous:dangerus,dangerouse decide:deside decided:desided decision:desicion,decission depend:depand
depends:depands describe:discribe destroy:distroy education:eduction,educacion effect:efect effort:efford
energy:enery engine:engin enough:enought,enouf entertainment:entertaiment equipment:equipement
exactly:exactely exercise:excercise,exersice exist:exsist expensive:expencive,expansive explain:explane
famous:famus favorite:favorit,favourit foreign:foriegn,forein general:generall generally:generaly
government:govermnet guarantee:garantee guide:guid height:hight important:importants
improve:improuve,emprove increase:incrase,increse independent:independant individual:indivual
influence:influance intelligent:inteligent intelligence:inteligence journey:journy limited:limeted
listen:lissen machine:machin material:meterial maybe:mabye,may-be modern:moderne moment:momment
natural:naturel nature:natur neighbor:nieghbor obvious:obvius obviously:obviusly opposite:oposite
particular:particuler particularly:particulary perfect:perfact,parfect perhaps:perhapse period:peroid
popular:populer population:populaton power:powr practice:practise,pratice present:presant pressure:presure
prevent:privent previous:previus principle:principal privilege:privelege produce:produse program:progam
promise:promiss quite:quiet reality:realty realize:realise,relize relationship:relationshop relax:relaxe
remember:rember,remeber research:reserch,researche serious:serius similar:similer,simillar
situation:situtation,situtaion skill:skil skills:skils,skiils solution:soultion,sollution surprise:suprise
surprised:suprised technique:tecnique theory:teory thousand:thousend traffic:trafic,traffice
transport:transporte transportation:transpotation unfortunately:unfortunatly,unfortunetly value:valu
view:vew visit:vist weather:wheather women:womens,woman
"""
_WRONG_FORMS = """
information:informations advice:advices equipment:equipments knowledge:knowledges furniture:furnitures
homework:homeworks research:researches,researchs traffic:traffics pollution:pollutions
children:childs,childrens men:mans women:womans,womens people:peoples feet:foots teeth:tooths mice:mouses
sheep:sheeps fish:fishs lives:lifes wives:wifes knives:knifes leaves:leafs
themselves:themself,theirselves,themselfs himself:hisself ourselves:ourself went:goed,wented bought:buyed
thought:thinked taught:teached caught:catched brought:bringed,brang came:comed took:taked,tooked gave:gived
found:finded,founded knew:knowed grew:growed spoke:speaked wrote:writed told:telled,tolded said:sayed
made:maked felt:feeled kept:keeped left:leaved lost:losed met:meeted paid:payed saw:seed,sawed sold:selled
sent:sended sat:sitted slept:sleeped spent:spended stood:standed understood:understanded won:winned
became:becomed began:beginned broke:breaked built:builded chose:choosed drove:drived ate:eated fell:falled
forgot:forgetted got:getted had:haved heard:heared held:holded led:leaded meant:meaned ran:runned rose:rised
better:gooder,more-better best:goodest,bestest worse:badder worst:baddest easier:more-easier bigger:more-big
cheaper:more-cheap faster:more-fast further:farer many:manys much:muchs less:lesser don't:dont,do'nt
doesn't:doesnt,dosen't didn't:didnt isn't:isnt wasn't:wasnt aren't:arent can't:cant couldn't:couldnt
wouldn't:wouldnt shouldn't:shouldnt haven't:havent hasn't:hasnt won't:wo'nt I'm:Im,i'm I've:Ive,i've
everybody:every-body sometimes:some-time cannot:can-not
"""


def _table(text: str) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for entry in text.split():
        right, wrong = entry.split(":")
        table.setdefault(right, []).extend(form.replace("-", " ") for form in wrong.split(",") if form != right)
    return table


# right word -> wrong spellings; a wrong spelling that is a word itself is not used, since the rule could not detect it
MISSPELLINGS: dict[str, list[str]] = _table(_MISSPELLED)
# right form -> wrong inflections and missing apostrophes
WRONG_FORMS: dict[str, list[str]] = _table(_WRONG_FORMS)

# words that compete for the same slot, groups separated by "|"; "_" is an empty slot
_CONFUSED = """
a an the _|in on at of for to with from by about into|of _|to _|then than|their there they|its it's|your you're
|much many|is are|was were|has have|do does|this these|that those|lose loose|affect effect|quite quiet|who which
|other another others|good well|too to two|where were|know now|new knew|form from|here hear|write right
|weather whether|no not|live life|us use|our are|hole whole|person people|woman women|man men|think thing
|choose chose|of off|more most|less fewer|be being been|them they|he him|she her|I me
"""
CONFUSION_SETS: tuple[frozenset[str], ...] = tuple(
    frozenset("" if word == "_" else word for word in group.split()) for group in _CONFUSED.split("|")
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGREEMENT_SINGULAR = _words("he she it")
AGREEMENT_PLURAL = _words("they we you i")
BASE_FORM_AFTER = _words("to will would can could should may might must did cannot don't didn't doesn't let's")
PARTICIPLE_AFTER = _words("have has had been")
PLURAL_AFTER = _words("many these those several few two three four five six seven eight nine ten both various")
SINGULAR_AFTER = _words("a an this each every another one")
_INTRODUCTIONS = """
however|therefore|moreover|furthermore|finally|nevertheless|consequently|unfortunately|fortunately|meanwhile
|similarly|besides|secondly|firstly|for example|for instance|in fact|in addition|of course|in conclusion
|on the other hand|first of all|as a result|in contrast|in general|in other words|after all
"""
# introductions that a comma follows
INTRODUCTIONS = frozenset(text.strip() for text in _INTRODUCTIONS.split("|"))
